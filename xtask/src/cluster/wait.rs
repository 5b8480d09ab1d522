//! Bounded waits. A look at what is waited for comes in, with the words for its failure; when it does not come, the error
//! says what was seen last and ends with the end of the log.

use std::fs;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::bail;

/// Between two looks.
const PAUSE: Duration = Duration::from_millis(200);
/// Lines of a log that an error shows, and how long a line may be.
const LINES: usize = 15;
const WIDTH: usize = 400;

/// What a look showed.
pub(crate) enum Look {
    Ready,
    /// Not yet, and why.
    NotYet(String),
    /// Never: waiting longer is of no use.
    Failed(String),
}

/// Looks until it is ready, for at most this long. `failure` is how the error begins ("etcd did not come up"), and `log`
/// what its reader wants to see.
pub(crate) fn until(
    failure: &str,
    longest: Duration,
    log: &Path,
    mut look: impl FnMut() -> anyhow::Result<Look>,
) -> anyhow::Result<()> {
    let deadline = Instant::now() + longest;
    loop {
        let last = match look()? {
            Look::Ready => return Ok(()),
            Look::NotYet(last) if Instant::now() < deadline => {
                drop(last);
                thread::sleep(PAUSE);
                continue;
            }
            Look::NotYet(last) => format!("{failure} within {} s: {last}", longest.as_secs()),
            Look::Failed(last) => format!("{failure}: {last}"),
        };
        bail!("{last}{}", end_of(log));
    }
}

/// The last lines of a log, as an error shows them.
pub(crate) fn end_of(log: &Path) -> String {
    let text = fs::read(log).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let lines: Vec<&str> = text.lines().collect();
    let last = lines.iter().skip(lines.len().saturating_sub(LINES));
    let shown: String = last.map(|line| format!("\n  | {}", line.chars().take(WIDTH).collect::<String>())).collect();
    match shown.is_empty() {
        true => format!("\n(nothing in {})", log.display()),
        false => format!("\nthe end of {}:{shown}", log.display()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_come_is_named_with_the_end_of_its_log() {
        let log = std::env::temp_dir().join(format!("stoker-wait-{}", std::process::id()));
        fs::write(&log, (1..=100).map(|line| format!("line {line}\n")).collect::<String>()).unwrap();
        let mut looks = 0;
        let result = until("etcd did not come up", Duration::ZERO, &log, || {
            looks += 1;
            Ok(Look::NotYet("no answer".to_string()))
        });
        let text = result.unwrap_err().to_string();
        assert!(text.starts_with("etcd did not come up within 0 s: no answer\nthe end of"), "{text}");
        assert!(text.contains("line 86\n") && text.ends_with("line 100") && !text.contains("line 85\n"), "{text}");
        assert_eq!(looks, 1);
        let failed =
            until("etcd did not come up", Duration::MAX / 4, &log, || Ok(Look::Failed("it ended".to_string())));
        assert!(failed.unwrap_err().to_string().starts_with("etcd did not come up: it ended"));
        until("etcd did not come up", Duration::ZERO, &log, || Ok(Look::Ready)).unwrap();
        fs::remove_file(&log).unwrap();
        assert!(end_of(&log).contains("nothing in"));
    }
}
