//! The edge: everything that goes to a user's terminal goes through here. Control characters that others wrote (a node, a registry, an
//! object) are escaped, line ends of our own are kept. A closed pipe ends standard output quietly: `stoker get | head -1` is no
//! error.

use std::borrow::Cow;
use std::fmt::Arguments;
use std::io::Write as _;

use stoker_core::text;

/// Writes to standard output.
pub(crate) fn print(text: Arguments<'_>) {
    let mut out = std::io::stdout().lock();
    let text = text.to_string();
    if let Err(problem) = out.write_all(lines(&text).as_bytes()).and_then(|()| out.flush()) {
        let quiet = problem.kind() == std::io::ErrorKind::BrokenPipe;
        if !quiet {
            tell(format_args!("error: cannot write to standard output: {problem}"));
        }
        std::process::exit(i32::from(!quiet));
    }
}

/// Writes a line to standard error.
pub(crate) fn tell(text: Arguments<'_>) {
    let text = text.to_string();
    // There is nobody to be told that nobody can be told.
    let _ = writeln!(std::io::stderr().lock(), "{}", lines(&text));
}

/// Several lines with everything escaped but their ends. Texts of others are escaped before they become part of a line, where
/// a line end in them would make another line.
pub(crate) fn lines(text: &str) -> Cow<'_, str> {
    if text.split('\n').all(|line| matches!(text::escape(line), Cow::Borrowed(_))) {
        return Cow::Borrowed(text);
    }
    let lines: Vec<Cow<'_, str>> = text.split('\n').map(text::escape).collect();
    Cow::Owned(lines.join("\n"))
}

/// `print!` for users.
macro_rules! out {
    ($($part:tt)*) => { $crate::out::print(format_args!($($part)*)) };
}

/// `println!` for users.
macro_rules! outln {
    ($($part:tt)*) => { $crate::out::print(format_args!("{}\n", format_args!($($part)*))) };
}

/// `eprintln!` for users.
macro_rules! errln {
    ($($part:tt)*) => { $crate::out::tell(format_args!($($part)*)) };
}

pub(crate) use {errln, out, outln};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_stay_and_everything_else_is_shown() {
        for (text, shown) in [
            ("one\ntwo\n", "one\ntwo\n"),
            ("\u{1b}]0;x\u{7}\nt\u{202e}wo\r\n", "\\u001b]0;x\\u0007\nt\\u202ewo\\r\n"),
            ("", ""),
        ] {
            assert_eq!(lines(text), shown);
        }
        // JSON says the same afterwards.
        let value = serde_json::json!({ "message": "\u{9b}31m \u{202e} \u{7f} \u{1b} \n ü" });
        let printed = format!("{value:#}");
        assert_ne!(lines(&printed), printed);
        assert_eq!(serde_json::from_str::<serde_json::Value>(&lines(&printed)).unwrap(), value);
    }

    /// Nothing is printed but by this file: a message of a registry would reach the terminal as it is.
    #[test]
    fn nobody_else_prints() {
        let mut folders = vec![std::path::PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/src"))];
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                match path.extension().and_then(|extension| extension.to_str()) {
                    None if path.is_dir() => folders.push(path),
                    Some("rs") if !path.ends_with("out.rs") => {
                        let text = std::fs::read_to_string(&path).unwrap();
                        let found = ["println!(", "print!("].iter().any(|word| text.contains(word));
                        assert!(!found, "{} prints by itself; use out!, outln! or errln!", path.display());
                    }
                    _ => {}
                }
            }
        }
    }
}
