//! Texts that others wrote: a registry's answer, a node's report, an object of the API server. They come in as they are; what goes out can be
//! printed on a terminal and stored in an object. Nothing is lost but what is too long.

use std::borrow::Cow;
use std::fmt::Write as _;

/// The most characters of a message that is stored.
pub const LONGEST: usize = 1024;

/// The same text with every character escaped that a terminal acts on instead of showing it: control characters, line ends among
/// them, and those that change the direction of a text. Escapes are those of JSON, so that JSON stays what it was.
pub fn escape(text: &str) -> Cow<'_, str> {
    if !text.contains(acts) {
        return Cow::Borrowed(text);
    }
    let mut shown = String::with_capacity(text.len() + 16);
    for letter in text.chars() {
        match letter {
            '\n' => shown.push_str("\\n"),
            '\r' => shown.push_str("\\r"),
            '\t' => shown.push_str("\\t"),
            // Writing to a String does not fail.
            _ if acts(letter) => drop(write!(shown, "\\u{:04x}", u32::from(letter))),
            _ => shown.push(letter),
        }
    }
    Cow::Owned(shown)
}

/// A message that somebody else wrote, as it may be stored: escaped, and not longer than [`LONGEST`].
pub fn message(text: &str) -> String {
    let text = escape(text);
    match text.char_indices().nth(LONGEST) {
        None => text.into_owned(),
        Some(_) => text.chars().take(LONGEST - 1).chain(['…']).collect(),
    }
}

/// C0, DEL and C1; line and paragraph separators; marks, embeddings, overrides and isolates of bidirectional text.
fn acts(letter: char) -> bool {
    letter.is_control()
        || matches!(
            letter,
            '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}'
        )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_terminal_acts_on_is_shown() {
        for (text, shown) in [
            ("plain — ünïcödé 漢字 \"quoted\" \\ back", "plain — ünïcödé 漢字 \"quoted\" \\ back"),
            ("\u{1b}[2J\u{1b}]0;title\u{7}", "\\u001b[2J\\u001b]0;title\\u0007"),
            ("a\r\nb\tc", "a\\r\\nb\\tc"),
            ("\u{7f}\u{9b}31m\0", "\\u007f\\u009b31m\\u0000"),
            ("a\u{202e}gpj.exe\u{2066}", "a\\u202egpj.exe\\u2066"),
            ("\u{2028}\u{200f}\u{61c}", "\\u2028\\u200f\\u061c"),
        ] {
            assert_eq!(escape(text), shown);
            assert_eq!(escape(shown), shown, "what was escaped stays as it is");
        }
    }

    #[test]
    fn a_message_has_an_end() {
        assert_eq!(message("short\n"), "short\\n");
        let exact = "ü".repeat(LONGEST);
        assert_eq!(message(&exact), exact);
        for long in ["ü".repeat(LONGEST + 1), "\u{1b}".repeat(1 << 20)] {
            let cut = message(&long);
            assert_eq!((cut.chars().count(), cut.ends_with('…')), (LONGEST, true));
            assert_eq!(message(&cut), cut);
        }
    }
}
