//! Fuzzes every target of `fuzz/` for a set time, one after the other, and says what each run did. Needs a nightly toolchain, and
//! installs cargo-fuzz below `fuzz/target/`. What is found becomes a file there; what breaks a property ends the command with an
//! error that names the input.

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, bail};

use crate::shell;

const CARGO_FUZZ: &str = "0.13.2";
/// Of one target, where nobody says how long.
const MINUTES: f64 = 2.0;

/// What to fuzz, and how long each target takes.
#[derive(Debug, PartialEq)]
pub(crate) struct SoakWish {
    minutes: f64,
    targets: Vec<String>,
}

impl SoakWish {
    /// Reads what follows `test --soak`.
    pub(crate) fn parse(args: &[&str]) -> anyhow::Result<Self> {
        let mut wish = Self { minutes: MINUTES, targets: Vec::new() };
        let mut args = args.iter();
        while let Some(arg) = args.next() {
            match *arg {
                "--minutes" => {
                    let minutes = args.next().and_then(|text| text.parse().ok());
                    let minutes = minutes.filter(|minutes: &f64| minutes.is_finite() && *minutes > 0.0);
                    wish.minutes = minutes.context("--minutes needs a number above 0, such as 2 or 0.5")?;
                }
                option if option.starts_with('-') => bail!("unknown option of test --soak: {option}"),
                target => wish.targets.push(target.to_owned()),
            }
        }
        Ok(wish)
    }

    fn seconds(&self) -> u64 {
        (self.minutes * 60.0).ceil() as u64
    }
}

/// Fuzzes the targets of the wish, or all.
pub(crate) fn run(wish: &SoakWish) -> anyhow::Result<()> {
    let folder = shell::root().join("fuzz");
    let known = targets(&folder)?;
    let chosen = if wish.targets.is_empty() { &known } else { &wish.targets };
    if let Some(unknown) = chosen.iter().find(|target| !known.contains(target)) {
        bail!("there is no fuzz target {unknown}; there is {}", known.join(", "));
    }
    let tools = tools(&folder)?;
    let mut broken = Vec::new();
    for target in chosen {
        println!("== {target}, {} s", wish.seconds());
        let read = fuzz(&folder, &tools, target, wish.seconds())?;
        println!("{}", read.line());
        if let Some(input) = read.input {
            println!("BROKEN: {target}: {input}");
            broken.push(format!("{target}: {input}\n  reproduce: {}", again(target, &input)));
        } else if !read.done {
            broken.push(format!("{target}: it ended without a result, see above"));
        }
    }
    match broken.is_empty() {
        true => Ok(()),
        false => bail!(
            "fuzzing broke {} of {} targets. Mend the code, and copy each input to fuzz/regressions/TARGET/ with a name that \
             says what it is:\n{}",
            broken.len(),
            chosen.len(),
            broken.join("\n")
        ),
    }
}

/// The names of all targets.
fn targets(folder: &Path) -> anyhow::Result<Vec<String>> {
    let files = std::fs::read_dir(folder.join("fuzz_targets")).context("cannot list fuzz/fuzz_targets")?;
    let mut names: Vec<String> = files
        .filter_map(|file| file.ok()?.path().file_stem().map(|name| name.to_string_lossy().into_owned()))
        .collect();
    names.sort();
    Ok(names)
}

/// The folder with cargo-fuzz, once it and a nightly toolchain are there.
fn tools(folder: &Path) -> anyhow::Result<PathBuf> {
    let nightly = Command::new("rustup").args(["run", "nightly", "rustc", "--version"]).stderr(Stdio::null()).output();
    if !nightly.is_ok_and(|output| output.status.success()) {
        bail!("fuzzing needs a nightly toolchain: run `rustup toolchain install nightly --profile minimal`");
    }
    let root = folder.join("target/tools");
    if !root.join("bin/cargo-fuzz").is_file() {
        let mut install =
            shell::cargo_command(&["install", "cargo-fuzz", "--locked", "--version", CARGO_FUZZ, "--root"]);
        let installed = install.arg(&root).status().context("cannot run cargo install")?;
        if !installed.success() {
            bail!("cargo-fuzz {CARGO_FUZZ} could not be installed, see above");
        }
    }
    Ok(root.join("bin"))
}

/// No sanitizer: the crates forbid unsafe code, and without one a target runs more than twice as often.
const RUN: [&str; 7] = ["fuzz", "run", "--sanitizer", "none", "--features", "libfuzzer", "--target-dir"];

/// The command that runs one input again.
fn again(target: &str, input: &str) -> String {
    format!("PATH=$PWD/fuzz/target/tools/bin:$PATH cargo +nightly {} fuzz/target {target} {input}", RUN.join(" "))
}

/// Fuzzes one target. New inputs go to a folder of their own; the committed ones are only read.
fn fuzz(folder: &Path, tools: &Path, target: &str, seconds: u64) -> anyhow::Result<FuzzerOutput> {
    let found = folder.join("target/found").join(target);
    std::fs::create_dir_all(&found).with_context(|| format!("cannot make {}", found.display()))?;
    let path = std::env::var_os("PATH").unwrap_or_default();
    let path = std::env::join_paths(std::iter::once(tools.to_owned()).chain(std::env::split_paths(&path)))?;
    let mut command = Command::new("rustup");
    command.args(["run", "nightly", "cargo"]).args(RUN).arg(folder.join("target")).arg(target).arg(&found);
    command
        .args(["corpus", "regressions"].map(|kind| folder.join(kind).join(target)).iter().filter(|kind| kind.is_dir()));
    command.args(["--", "-timeout=20", "-rss_limit_mb=2048", "-max_len=65536", "-print_final_stats=1"]);
    command.arg(format!("-max_total_time={seconds}"));
    // The targets that write files do so in memory where there is such a folder.
    if std::env::var_os("TMPDIR").is_none() && Path::new("/dev/shm").is_dir() {
        command.env("TMPDIR", "/dev/shm");
    }
    let mut child = command.env("PATH", path).current_dir(shell::root()).stderr(Stdio::piped()).spawn()?;
    let mut reading = FuzzerOutput::default();
    if let Some(output) = child.stderr.take() {
        for line in BufReader::new(output).split(b'\n') {
            let line = String::from_utf8_lossy(&line?).into_owned();
            if reading.read(&line) {
                println!("{line}");
            }
        }
    }
    reading.done &= child.wait()?.success();
    Ok(reading)
}

/// How lines begin that say nothing to a person: progress, a dictionary, and functions that only sanitizers have.
const NOISE: [&str; 6] = ["#", "INFO:", "NEW_FUNC", "\"", "Done ", "WARNING: Failed to find function"];

/// What libFuzzer printed, read a line at a time.
#[derive(Debug, Default, PartialEq)]
struct FuzzerOutput {
    executions: u64,
    per_second: u64,
    new: u64,
    memory: u64,
    /// Statistics came: it ran to its end.
    done: bool,
    /// The file with the input that broke a property.
    input: Option<String>,
}

impl FuzzerOutput {
    /// Whether a person who watches wants to see the line.
    fn read(&mut self, line: &str) -> bool {
        if let Some((name, value)) = line.strip_prefix("stat::").and_then(|stat| stat.split_once(':')) {
            let value = value.trim().parse().unwrap_or_default();
            match name {
                "number_of_executed_units" => (self.executions, self.done) = (value, true),
                "average_exec_per_sec" => self.per_second = value,
                "new_units_added" => self.new = value,
                "peak_rss_mb" => self.memory = value,
                _ => {}
            }
            return false;
        }
        if let Some((_, file)) = line.split_once("Test unit written to ") {
            let root = shell::root();
            let file = Path::new(file.trim());
            self.input = Some(file.strip_prefix(&root).unwrap_or(file).display().to_string());
        }
        !NOISE.iter().any(|noise| line.trim_start().starts_with(noise))
            && !line.trim().is_empty()
            && self.input.is_none()
    }

    fn line(&self) -> String {
        let Self { executions, per_second, new, memory, .. } = self;
        format!("{executions} executions, {per_second} a second, {new} new inputs, {memory} MiB at most")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_asked_for() {
        let wish =
            |minutes, targets: &[&str]| SoakWish { minutes, targets: targets.iter().map(|t| t.to_string()).collect() };
        assert_eq!(SoakWish::parse(&[]).unwrap(), wish(2.0, &[]));
        assert_eq!(SoakWish::parse(&["--minutes", "0.5", "patch", "body"]).unwrap(), wish(0.5, &["patch", "body"]));
        assert_eq!(wish(0.01, &[]).seconds(), 1, "never 0, which is for ever");
        for wrong in [&["--minutes"][..], &["--minutes", "0"], &["--minutes", "NaN"], &["--minute", "3"]] {
            assert!(SoakWish::parse(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn what_libfuzzer_says() {
        let mut reading = FuzzerOutput::default();
        let shown: Vec<&str> = "INFO: Seed: 1\n#2\tINITED cov: 3\n\tNEW_FUNC[1/1]: 0x1\n\"a\" # Uses: 7\nDone 7 runs\nthread panicked: it broke\n\
            stat::number_of_executed_units: 1200\nstat::average_exec_per_sec:     600\nstat::new_units_added: 7\n\
            stat::peak_rss_mb: 40\nartifact_prefix='x'; Test unit written to /x/fuzz/artifacts/body/crash-1\nBase64: AA=="
            .lines()
            .filter(|line| reading.read(line))
            .collect();
        assert_eq!(shown, ["thread panicked: it broke"]);
        assert_eq!(reading.line(), "1200 executions, 600 a second, 7 new inputs, 40 MiB at most");
        assert_eq!(reading.input.as_deref(), Some("/x/fuzz/artifacts/body/crash-1"));
        assert!(reading.done);
    }

    #[test]
    fn the_targets_are_the_programs() {
        assert!(targets(&shell::root().join("fuzz")).unwrap().contains(&"unpack".to_string()));
    }
}
