//! How long the messages of reports may be. Each is bounded, but the node's object holds all of them: hundreds of orders that fail with
//! long messages would make it larger than the API server takes, and then neither reports nor orders of the node are written any more.

use std::borrow::Cow;
use std::iter;

use stoker_core::model::Report;
use stoker_core::world::ROOM_OF_MESSAGES;

/// The shortest length to which messages are cut, however many there are.
const SHORTEST: usize = 32;

/// The longest length to which messages are cut: about the most that one of them can have.
const LONGEST: usize = 4096;

/// The length that no message may exceed, so that all of them fit into their room. Lengths are powers of two: were the length to change with
/// every report, every write would have to say all of them again.
pub(crate) fn longest<'a>(reports: impl Iterator<Item = &'a Report>) -> usize {
    let lengths: Vec<usize> = reports.map(|report| report.message.chars().map(length).sum()).collect();
    let fit = |most: &usize| lengths.iter().map(|length| (*length).min(*most)).sum::<usize>() <= ROOM_OF_MESSAGES;
    let halves = iter::successors(Some(LONGEST), |length| Some(length / 2)).take_while(|length| *length > SHORTEST);
    iter::once(usize::MAX).chain(halves).find(fit).unwrap_or(SHORTEST)
}

/// The report with a message of at most this length.
pub(crate) fn cut(report: &Report, most: usize) -> Cow<'_, Report> {
    if report.message.chars().map(length).sum::<usize>() <= most {
        return Cow::Borrowed(report);
    }
    let mut left = most.saturating_sub(length('…'));
    let fits = |letter: &char| {
        let fits = length(*letter) <= left;
        left = left.saturating_sub(length(*letter));
        fits
    };
    let message = report.message.chars().take_while(fits).chain(['…']).collect();
    Cow::Owned(Report { message, ..report.clone() })
}

/// What a character takes in JSON, as API servers write it.
pub(crate) fn length(letter: char) -> usize {
    match letter {
        '"' | '\\' => 2,
        '<' | '>' | '&' | '\u{2028}' | '\u{2029}' => 6,
        _ if letter.is_control() => 6,
        _ => letter.len_utf8(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{at, order};
    use stoker_core::step::begin;

    fn report(message: &str) -> Report {
        Report { message: message.into(), ..begin(&order(), 1, None, at(0)).report }
    }

    #[test]
    fn messages_are_cut_only_where_all_of_them_do_not_fit() {
        for (count, message, expected) in [
            (0, "", usize::MAX),
            (20, "x".repeat(1024).as_str(), usize::MAX),
            (128, &"x".repeat(1024), usize::MAX),
            (129, &"x".repeat(1024), 512),
            (800, &"x".repeat(150), usize::MAX),
            (800, &"x".repeat(1024), 128),
            (128, &"\\".repeat(1024), 1024),
            (33, &"\u{1f980}".repeat(1024), 2048),
            (100_000, "a message of no great length, as most of them are", SHORTEST),
        ] {
            let reports = vec![report(message); count];
            assert_eq!(longest(reports.iter()), expected, "{count} of {} bytes", message.len());
        }
        let (long, short) = (vec![report(&"x".repeat(1024)); 200], vec![report("short"); 300]);
        assert_eq!(longest(long.iter().chain(&short)), 512);
        assert_eq!(cut(&short[0], 512).message, "short", "short ones stay as they are");
    }

    #[test]
    fn a_message_is_cut_between_characters_and_by_what_it_takes_in_json() {
        for (message, most, expected) in [
            ("plain", 5, "plain"),
            ("plainly", 6, "pla…"),
            ("\u{fc}\u{fc}\u{fc}\u{fc}", 7, "\u{fc}\u{fc}…"),
            ("\"\"\"\"", 7, "\"\"…"),
            ("<<>>", 15, "<<…"),
            ("\u{1f980}\u{1f980}", 6, "…"),
            // No character after the one that did not fit.
            ("a\u{1f980}bc", 6, "a…"),
        ] {
            let report = report(message);
            let cut = cut(&report, most);
            assert_eq!(cut.message, expected);
            let json = serde_json::to_string(&cut.message).unwrap();
            assert!(json.len() - 2 <= most, "{json}");
        }
    }
}
