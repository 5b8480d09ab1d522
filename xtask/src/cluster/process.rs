//! Processes of this machine, read from /proc: who lives, whose child, who carries a mark. A number alone is never
//! trusted, numbers are used again: a process is its number and the time it started.

use std::fs;
use std::process::Command;

use anyhow::Context as _;

/// The variable that every process of a cluster carries in its environment, with the cluster's mark.
pub(crate) const VARIABLE: &str = "STOKER_CLUSTER_MARK";

/// One process, told apart from a later one of the same number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Process {
    pub(crate) pid: u32,
    /// In ticks since the machine started.
    pub(crate) start: u64,
}

struct Stat {
    parent: u32,
    start: u64,
    dead: bool,
}

impl Process {
    /// The process of this number now.
    pub(crate) fn of(pid: u32) -> Option<Self> {
        stat(pid).map(|stat| Self { pid, start: stat.start })
    }

    /// Whether it runs; one that ended and was not waited for does not.
    pub(crate) fn lives(self) -> bool {
        stat(self.pid).is_some_and(|stat| stat.start == self.start && !stat.dead)
    }

    /// Whether it is still listed: it runs, or it ended and its parent, another than us, has not looked yet.
    pub(crate) fn is_listed(self) -> bool {
        let us = std::process::id();
        stat(self.pid).is_some_and(|stat| stat.start == self.start && !(stat.dead && stat.parent == us))
    }

    /// Its first child that runs.
    pub(crate) fn child(self) -> Option<Self> {
        all().into_iter().find_map(|pid| {
            let stat = stat(pid)?;
            (stat.parent == self.pid && !stat.dead).then_some(Self { pid, start: stat.start })
        })
    }

    fn carries(self, mark: &str) -> bool {
        let wanted = format!("{VARIABLE}={mark}");
        let environment = fs::read(format!("/proc/{}/environ", self.pid)).unwrap_or_default();
        environment.split(|byte| *byte == 0).any(|variable| variable == wanted.as_bytes())
    }
}

/// All that run and carry the mark.
pub(crate) fn marked(mark: &str) -> Vec<Process> {
    all().into_iter().filter_map(Process::of).filter(|process| process.carries(mark) && process.lives()).collect()
}

/// All in a cgroup, by its file of numbers.
pub(crate) fn listed(numbers: &str) -> Vec<Process> {
    numbers.lines().filter_map(|line| line.trim().parse().ok()).filter_map(Process::of).collect()
}

/// Sends a signal to each that is still the same.
pub(crate) fn signal(signal: &str, processes: &[Process]) -> anyhow::Result<()> {
    let alive: Vec<String> =
        processes.iter().filter(|process| process.lives()).map(|process| process.pid.to_string()).collect();
    if alive.is_empty() {
        return Ok(());
    }
    // It fails when one of them ended by itself in the meantime; who lives on is for the caller to see.
    Command::new("kill").arg("-s").arg(signal).args(&alive).output().context("cannot run kill")?;
    Ok(())
}

fn all() -> Vec<u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

fn stat(pid: u32) -> Option<Stat> {
    parse(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

/// The name, in parentheses, may hold anything: what follows the last one is fields.
fn parse(text: &str) -> Option<Stat> {
    let mut fields = text.get(text.rfind(')')? + 1..)?.split_whitespace();
    let dead = matches!(fields.next()?, "Z" | "X");
    let parent = fields.next()?.parse().ok()?;
    let start = fields.nth(17)?.parse().ok()?;
    Some(Stat { parent, start, dead })
}

/// Waits for one that carries the mark: while it becomes the program that it shall be, it has no environment.
#[cfg(test)]
pub(crate) fn awaited(mark: &str) -> Vec<Process> {
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
    while marked(mark).is_empty() && std::time::Instant::now() < deadline {
        std::thread::yield_now();
    }
    marked(mark)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_spaces_and_parentheses_is_no_field() {
        let line = "42 (a) b (c) S 7 42 42 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 4711 100 200";
        let stat = parse(line).unwrap();
        assert_eq!((stat.parent, stat.start, stat.dead), (7, 4711, false));
        assert!(parse("42 (x) Z 1 2").is_none());
    }

    #[test]
    fn a_marked_process_is_found_and_killed_and_its_number_is_not_enough() {
        let mark = format!("test-{}", std::process::id());
        let mut child = Command::new("sleep").arg("600").env(VARIABLE, &mark).spawn().unwrap();
        let found = awaited(&mark);
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].pid, child.id());
        assert!(found[0].lives());
        let another = Process { start: found[0].start + 1, ..found[0] };
        assert!(!another.lives());
        signal("KILL", &[another]).unwrap();
        assert!(found[0].lives());
        signal("KILL", &found).unwrap();
        assert!(!child.wait().unwrap().success());
        assert!(!found[0].lives() && marked(&mark).is_empty());
    }
}
