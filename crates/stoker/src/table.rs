//! Plain tables and short texts for numbers, as people expect them from a command line.

use std::borrow::Cow;

use jiff::Timestamp;
use stoker_core::text;

/// Columns aligned to the left, two spaces between, nothing after the last.
pub(crate) fn render(header: &[&str], rows: &[Vec<String>]) -> String {
    // A line end in a cell would make a row that nobody wrote.
    let rows: Vec<Vec<Cow<'_, str>>> =
        rows.iter().map(|row| row.iter().map(|cell| text::escape(short(cell))).collect()).collect();
    let mut widths: Vec<usize> = header.iter().map(|cell| cell.chars().count()).collect();
    for row in &rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let line = |cells: &mut dyn Iterator<Item = &str>| {
        let padded: Vec<String> = cells.zip(&widths).map(|(cell, width)| format!("{cell:<width$}")).collect();
        padded.join("  ").trim_end().to_string() + "\n"
    };
    let mut text = line(&mut header.iter().copied());
    for row in &rows {
        text += &line(&mut row.iter().map(|cell| &**cell));
    }
    text
}

/// Nobody reads a longer cell, and a width has 16 bits.
const LONGEST_CELL: usize = 4096;

fn short(cell: &str) -> &str {
    cell.char_indices().nth(LONGEST_CELL).and_then(|(end, _)| cell.get(..end)).unwrap_or(cell)
}

/// The time since, as kubectl shows ages: `42s`, `7m`, `3h`, `5d`.
pub(crate) fn age(since: Option<Timestamp>, now: Timestamp) -> String {
    let Some(since) = since else { return "-".into() };
    let seconds = (now.as_second() - since.as_second()).max(0);
    match seconds {
        0..120 => format!("{seconds}s"),
        120..7200 => format!("{}m", seconds / 60),
        7200..172_800 => format!("{}h", seconds / 3600),
        _ => format!("{}d", seconds / 86_400),
    }
}

/// Enough of a digest to recognise it.
pub(crate) fn short_digest(digest: &str) -> String {
    digest.chars().take("sha256:".len() + 12).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cell_of_any_length_can_be_printed() {
        let row = vec!["ä".repeat(70_000), "b".into()];
        assert_eq!(render(&["A", "B"], &[row]).lines().last().map(|line| line.chars().count()), Some(LONGEST_CELL + 3));
    }

    #[test]
    fn tables_and_numbers() {
        let rows = vec![vec!["a".to_string(), "1".into()], vec!["long".into(), "".into()]];
        assert_eq!(render(&["NAME", "N"], &rows), "NAME  N\na     1\nlong\n");
        let forged = vec![vec!["a\nb  2".to_string(), "\u{1b}[8m".into()]];
        assert_eq!(render(&["NAME", "N"], &forged), "NAME     N\na\\nb  2  \\u001b[8m\n");
        let at = |second| Timestamp::from_second(second).unwrap();
        for (seconds, text) in [(5, "5s"), (119, "119s"), (180, "3m"), (7200, "2h"), (200_000, "2d"), (-5, "0s")] {
            assert_eq!(age(Some(at(0)), at(seconds)), text);
        }
    }
}
