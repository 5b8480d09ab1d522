//! Reads what programs of tests print, line by line: how many passed, failed or were left out, which skipped themselves, and
//! what those said that failed.

/// What the tests print, read a line at a time.
#[derive(Default)]
pub(super) struct Reading {
    part: OutputPart,
    pub(super) passed: u64,
    pub(super) failed: u64,
    pub(super) ignored: u64,
    pub(super) skipped: Vec<String>,
    pub(super) failures: Vec<FailedTest>,
}

/// Each program of tests prints the tests, then what those said that passed, then what those said that failed.
#[derive(Default)]
enum OutputPart {
    #[default]
    Tests,
    Passed,
    Failed,
    /// In a failure, the calls that led there: long, and of no use twice.
    Calls,
}

pub(super) struct FailedTest {
    pub(super) test: String,
    pub(super) said: Vec<String>,
}

impl Reading {
    /// Whether a person who watches wants to see this line: what tests say that pass is noise.
    pub(super) fn read(&mut self, line: &str) -> bool {
        if let Some(skip) = line.strip_prefix("SKIPPED: ") {
            self.skipped.push(skip.to_string());
        }
        match (line, &self.part) {
            ("successes:", _) => self.part = OutputPart::Passed,
            ("failures:", OutputPart::Tests | OutputPart::Passed) => self.part = OutputPart::Failed,
            // Their names follow once more, which were said.
            ("failures:", OutputPart::Failed | OutputPart::Calls) => self.part = OutputPart::Tests,
            (_, OutputPart::Failed | OutputPart::Calls) => self.failure(line),
            _ => {}
        }
        if line.starts_with("test result: ") {
            self.part = OutputPart::Tests;
            self.result(line);
        }
        !matches!(self.part, OutputPart::Passed)
    }

    fn failure(&mut self, line: &str) {
        if let Some(test) = line.strip_prefix("---- ").and_then(|line| line.strip_suffix(" stdout ----")) {
            self.part = OutputPart::Failed;
            self.failures.push(FailedTest { test: test.to_string(), said: Vec::new() });
        } else if line == "stack backtrace:" {
            self.part = OutputPart::Calls;
        } else if matches!(self.part, OutputPart::Calls) {
            if line.starts_with("note: ") {
                self.part = OutputPart::Failed;
            }
        } else if let Some(failure) = self.failures.last_mut()
            && !line.is_empty()
        {
            failure.said.push(line.to_string());
        }
    }

    fn result(&mut self, line: &str) {
        for part in line.split([';', '.']) {
            let mut words = part.split_whitespace();
            if let (Some(Ok(number)), Some(what)) = (words.next().map(str::parse::<u64>), words.next()) {
                match what {
                    "passed" => self.passed += number,
                    "failed" => self.failed += number,
                    "ignored" => self.ignored += number,
                    _ => {}
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of two programs of tests, as libtest prints it with `--show-output`.
    const OUTPUT: &str = "
running 3 tests
test one ... ok
test two ... ok
test three ... ignored

successes:

---- one stdout ----
thread 'one' panicked: which it catches
SKIPPED: no kubectl


successes:
    one
    two

test result: ok. 2 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.04s

running 2 tests
test four ... FAILED
test five ... FAILED

failures:

---- four stdout ----
thread 'four' panicked at x.rs:1:1:
left is not right
stack backtrace:
   0: one
   1: another
note: Some details are omitted

---- five stdout ----
Error: no


failures:
    four
    five

test result: FAILED. 0 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.04s
";

    #[test]
    fn results_are_counted_and_failures_kept() {
        let mut reading = Reading::default();
        let seen: Vec<&str> = OUTPUT.lines().filter(|line| reading.read(line)).collect();
        assert_eq!((reading.passed, reading.failed, reading.ignored), (2, 2, 1));
        assert_eq!(reading.skipped, ["no kubectl"]);
        let failures: Vec<_> = reading.failures.iter().map(|one| (one.test.as_str(), one.said.join("; "))).collect();
        let four = "thread 'four' panicked at x.rs:1:1:; left is not right".to_string();
        assert_eq!(failures, [("four", four), ("five", "Error: no".to_string())]);
        assert!(!seen.iter().any(|line| line.contains("catches")), "{seen:?}");
        assert!(seen.contains(&"   1: another"), "{seen:?}");
    }
}
