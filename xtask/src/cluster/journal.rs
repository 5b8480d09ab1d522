//! What a cluster made outside of its folder, one JSON object a line, on disk before the thing is made.
//!
//! Records go in and come out in order. The first names the cluster's mark, which every process of it carries in its
//! environment from birth: so a process is found even when `up` died between starting it and noting its number. A last
//! line that a crash cut off is ignored, and the next one takes its place: what it would have announced was not begun.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use serde_json::{Value, json};

use super::fleet::FLEET;
use super::place::{Fleet, Nodes};
use super::process::Process;

/// Between fork and exec, on a loaded machine.
const MOMENT: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(20);

/// One line.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Record {
    /// The value of the variable that all processes carry.
    Mark(String),
    /// A cgroup of this name, in every hierarchy, for the containers.
    Cgroup(String),
    /// A kernel setting that kubelets change, and its value before.
    Setting { path: String, was: String },
    /// A machine or a program in one, as it was started.
    Part(Part),
    /// All of it is up, with these nodes.
    Up(Nodes),
    /// Whether it goes with the one who has it on loan.
    Goes(bool),
}

/// A process that makes the cluster what it is.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Part {
    /// `n1` for a machine, `n1/kubelet` for a program in it.
    pub(crate) name: String,
    pub(crate) process: Process,
    /// Program and arguments inside of the machine; empty for a machine.
    pub(crate) command: Vec<String>,
    /// Its PATH.
    pub(crate) path: String,
}

/// An open journal.
pub(crate) struct Journal {
    file: File,
    path: PathBuf,
    pub(crate) records: Vec<Record>,
}

impl Journal {
    /// Begins one, with a new mark.
    pub(crate) fn begin(path: &Path) -> anyhow::Result<Self> {
        let random = File::open("/dev/urandom").and_then(|mut source| {
            let mut bytes = [0_u8; 16];
            std::io::Read::read_exact(&mut source, &mut bytes).map(|()| bytes)
        });
        let random = random.context("cannot read /dev/urandom")?;
        let mark: String = random.iter().map(|byte| format!("{byte:02x}")).collect();
        let file = OpenOptions::new().create_new(true).append(true).open(path);
        let file = file.with_context(|| format!("cannot make {}", path.display()))?;
        let mut journal = Self { file, path: path.to_path_buf(), records: Vec::new() };
        journal.add(Record::Mark(mark))?;
        Ok(journal)
    }

    /// Opens one that is there; `None` where none is.
    pub(crate) fn open(path: &Path) -> anyhow::Result<Option<Self>> {
        let text = match fs::read_to_string(path) {
            Ok(text) => text,
            Err(problem) if problem.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(problem) => return Err(problem).with_context(|| format!("cannot read {}", path.display())),
        };
        let records = parse(&text[..whole(text.as_bytes())]);
        let records = records.with_context(|| format!("{} is not a journal of ours", path.display()))?;
        let file = OpenOptions::new().append(true).open(path);
        let file = file.with_context(|| format!("cannot open {}", path.display()))?;
        Ok(Some(Self { file, path: path.to_path_buf(), records }))
    }

    /// Notes something; it is on disk when this returns. Whoever calls holds the lock.
    pub(crate) fn add(&mut self, record: Record) -> anyhow::Result<()> {
        let line = format!("{}\n", to_json(&record));
        let written = self.cut().and_then(|()| self.file.write_all(line.as_bytes()));
        written
            .and_then(|()| self.file.sync_data())
            .with_context(|| format!("cannot write {}", self.path.display()))?;
        self.records.push(record);
        Ok(())
    }

    /// Removes what a crash cut off. Not when opened: who only reads may see half of what another writes just now.
    fn cut(&self) -> std::io::Result<()> {
        let text = fs::read(&self.path)?;
        match whole(&text) {
            whole if whole < text.len() => self.file.set_len(whole as u64),
            _ => Ok(()),
        }
    }

    /// What every process of the cluster carries. `None` when the crash came before anything was made.
    pub(crate) fn mark(&self) -> Option<&str> {
        self.records.iter().find_map(|record| match record {
            Record::Mark(mark) => Some(mark.as_str()),
            _ => None,
        })
    }

    /// With which nodes all of it came up; `None` when it did not.
    pub(crate) fn nodes(&self) -> Option<&Nodes> {
        self.records.iter().rev().find_map(|record| match record {
            Record::Up(nodes) => Some(nodes),
            _ => None,
        })
    }

    /// Whether it came on loan, and nobody wanted it to stay since.
    pub(crate) fn goes(&self) -> bool {
        let last = self.records.iter().rev().find_map(|record| match record {
            Record::Goes(goes) => Some(*goes),
            _ => None,
        });
        last.unwrap_or_default()
    }

    /// Has the cluster on loan for as long as this journal is open; the kernel ends it for one that is killed.
    pub(crate) fn borrow(&self) -> anyhow::Result<()> {
        match self.on_loan()? {
            true => bail!("somebody else works with the cluster: wait for that"),
            false => Ok(()),
        }
    }

    /// Whether anybody else has the cluster on loan. A child of one who gave it back just now may have it for a moment yet:
    /// until it has become another program, it holds all that its parent held.
    pub(crate) fn on_loan(&self) -> anyhow::Result<bool> {
        let deadline = Instant::now() + MOMENT;
        loop {
            match self.file.try_lock() {
                Ok(()) => return Ok(false),
                Err(TryLockError::WouldBlock) if Instant::now() < deadline => thread::sleep(PAUSE),
                Err(TryLockError::WouldBlock) => return Ok(true),
                Err(TryLockError::Error(problem)) => {
                    return Err(problem).with_context(|| format!("cannot lock {}", self.path.display()));
                }
            }
        }
    }

    /// Whether the nodes are simulated.
    pub(crate) fn fake(&self) -> bool {
        self.parts().iter().any(|part| part.name == FLEET)
    }

    /// Every part as it was started last, in the order of their first starts.
    pub(crate) fn parts(&self) -> Vec<&Part> {
        let mut parts: Vec<&Part> = Vec::new();
        for record in &self.records {
            let Record::Part(part) = record else { continue };
            match parts.iter_mut().find(|known| known.name == part.name) {
                Some(known) => *known = part,
                None => parts.push(part),
            }
        }
        parts
    }

    /// A part by its name.
    pub(crate) fn part(&self, name: &str) -> anyhow::Result<&Part> {
        let parts = self.parts();
        let Some(part) = parts.iter().find(|part| part.name == name) else {
            let names: Vec<&str> = parts.iter().map(|part| part.name.as_str()).collect();
            bail!("the cluster has no part {name}; there are: {}", names.join(", "));
        };
        Ok(part)
    }
}

fn to_json(record: &Record) -> Value {
    match record {
        Record::Mark(mark) => json!({"mark": mark}),
        Record::Cgroup(name) => json!({"cgroup": name}),
        Record::Setting { path, was } => json!({"setting": path, "was": was}),
        Record::Part(Part { name, process, command, path }) => json!({
            "part": name, "pid": process.pid, "start": process.start, "command": command, "path": path,
        }),
        Record::Up(Nodes::Real(nodes)) => json!({"up": nodes}),
        Record::Up(Nodes::Fake(Fleet { nodes, pull_time, fail_every, binary })) => json!({
            "up": nodes, "fake": true, "pull-time": pull_time, "fail-every": fail_every, "binary": binary,
        }),
        Record::Goes(goes) => json!({"goes": goes}),
    }
}

/// How much of it is whole lines.
fn whole(text: &[u8]) -> usize {
    text.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1)
}

fn parse(text: &str) -> anyhow::Result<Vec<Record>> {
    text.lines().map(|line| from_json(&serde_json::from_str(line)?).with_context(|| format!("odd: {line}"))).collect()
}

fn from_json(value: &Value) -> Option<Record> {
    let text = |key: &str| value[key].as_str().map(str::to_string);
    if let Some(mark) = text("mark") {
        return Some(Record::Mark(mark));
    }
    if let Some(name) = text("cgroup") {
        return Some(Record::Cgroup(name));
    }
    if let Some(goes) = value["goes"].as_bool() {
        return Some(Record::Goes(goes));
    }
    if let Some(path) = text("setting") {
        return Some(Record::Setting { path, was: text("was")? });
    }
    if let Some(name) = text("part") {
        let command = value["command"].as_array()?.iter().map(|word| word.as_str().map(str::to_string));
        return Some(Record::Part(Part {
            name,
            process: Process { pid: value["pid"].as_u64()?.try_into().ok()?, start: value["start"].as_u64()? },
            command: command.collect::<Option<_>>()?,
            path: text("path")?,
        }));
    }
    let nodes = value["up"].as_u64()?.try_into().ok()?;
    if value["fake"] != true {
        return Some(Record::Up(Nodes::Real(nodes)));
    }
    let fail_every = value["fail-every"].as_u64().and_then(|every| every.try_into().ok());
    Some(Record::Up(Nodes::Fake(Fleet { nodes, pull_time: text("pull-time"), fail_every, binary: text("binary") })))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(name: &str, pid: u32) -> Part {
        let process = Process { pid, start: 7 };
        Part { name: name.to_string(), process, command: vec!["x".to_string()], path: "/bin".to_string() }
    }

    fn fleet(words: Option<&str>, fail_every: Option<usize>) -> Nodes {
        let words = words.map(str::to_string);
        Nodes::Fake(Fleet { nodes: 20, pull_time: words.clone(), fail_every, binary: words })
    }

    #[test]
    fn what_is_noted_is_read_again_and_a_line_that_was_cut_off_is_not() {
        let path = std::env::temp_dir().join(format!("stoker-journal-{}", std::process::id()));
        let mut journal = Journal::begin(&path).unwrap();
        let mark = journal.mark().unwrap().to_string();
        assert_eq!(mark.len(), 32);
        for record in [
            Record::Cgroup("c".to_string()),
            Record::Setting { path: "vm/x".to_string(), was: "0".to_string() },
            Record::Part(part("n1", 1)),
            Record::Part(part("n1/kubelet", 2)),
            Record::Part(part("n1", 3)),
            Record::Up(fleet(Some("2s"), Some(10))),
            Record::Up(fleet(None, None)),
            Record::Up(Nodes::Real(2)),
            Record::Goes(true),
        ] {
            journal.add(record).unwrap();
        }
        journal.file.write_all(b"{\"up\": 3").unwrap();
        let mut again = Journal::open(&path).unwrap().unwrap();
        assert_eq!(again.records, journal.records);
        // What is noted now does not stand behind the line that was cut off.
        again.add(Record::Goes(true)).unwrap();
        let again = Journal::open(&path).unwrap().unwrap();
        assert_eq!((again.mark(), again.nodes(), again.goes()), (Some(mark.as_str()), Some(&Nodes::Real(2)), true));
        assert_eq!(again.parts(), [&part("n1", 3), &part("n1/kubelet", 2)]);
        assert!(again.part("n2").unwrap_err().to_string().contains("n1/kubelet"));
        assert!(Journal::begin(&path).is_err(), "a journal is never begun over another");
        fs::remove_file(&path).unwrap();
        assert!(Journal::open(&path).unwrap().is_none());
    }

    #[test]
    fn what_is_no_journal_is_refused() {
        assert!(parse("hello\n").is_err());
        assert!(parse("{\"other\": 1}\n").is_err());
        assert_eq!(parse("").unwrap(), []);
    }
}
