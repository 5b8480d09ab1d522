//! A real Kubernetes cluster on this machine, for tests: `cargo xtask cluster up | down | status | …`.
//!
//! Arguments come in; a running cluster, its kubeconfig, or nothing of it at all goes out. It needs root and Go, and where
//! one is missing it says so in a line that begins with `SKIPPED: ` and ends with a code of its own. It changes nothing that
//! it does not put back: see `site` for how, and `journal` for what.

mod cgroup;
mod control;
mod down;
mod fleet;
mod images;
mod journal;
mod keys;
mod kubernetes;
pub(crate) mod loan;
mod lock;
mod network;
mod node;
mod options;
mod place;
mod process;
mod site;
mod up;
mod wait;

use std::fs;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

use anyhow::{Context as _, bail};

use self::journal::Journal;
use self::loan::Loan;
use self::options::{Options, Order};
pub(crate) use self::place::Fleet;
use self::place::{CONTROL, Nodes, Place};
use self::site::Site;
use self::up::Half;
use crate::shell;

const ROOT: &str = "a cluster needs root, for namespaces, mounts and cgroups";
/// What ended without having been tried, because this machine cannot: not a failure, and no success.
const SKIPPED: u8 = 3;

/// Does what the arguments say, and tells how it went.
pub(crate) fn main(args: &[&str]) -> ExitCode {
    match Options::parse(args).and_then(run) {
        Ok(code) => code,
        Err(problem) => {
            eprintln!("error: {problem:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(options: Options) -> anyhow::Result<ExitCode> {
    if !shell::is_root() {
        return Ok(skip(ROOT));
    }
    let place = match options.dir {
        Some(dir) => Place::new(dir)?,
        None => Place::usual()?,
    };
    match options.order {
        Order::Up { nodes } => match up::run(place, nodes, Half::Stays)? {
            Ok(_) => Ok(ExitCode::SUCCESS),
            Err(lack) => Ok(skip(&lack)),
        },
        Order::Down => take_down(&place),
        Order::Status => status(open(place)?),
        Order::Kubeconfig => {
            println!("{}", open(place)?.place.kubeconfig().display());
            Ok(ExitCode::SUCCESS)
        }
        Order::Exec { machine, command } => exec(&open(place)?, machine.as_deref(), &command),
        Order::Stop { part } => stop(&open(place)?, &part),
        Order::Start { part } => {
            let _lock = lock::change(&place)?;
            open(place)?.restart(&part)?;
            Ok(ExitCode::SUCCESS)
        }
    }
}

/// Brings up a cluster of simulated nodes, runs something on it, and takes it down whatever came of that. `run` gets cargo's
/// setting for programs that are to run inside, and the path of the file with the ends of pulls. Gives what this machine
/// lacks, if it does.
pub(crate) fn with_fake_nodes(
    dir: PathBuf,
    fleet: Fleet,
    run: impl FnOnce(&str, &str) -> anyhow::Result<()>,
) -> anyhow::Result<Option<String>> {
    if !shell::is_root() {
        return Ok(Some(ROOT.to_string()));
    }
    let place = || Place::new(dir.clone());
    // One that was left behind has seen other work: it goes. This folder is for nothing else.
    clear(&place()?)?;
    let up = match up::run(place()?, Some(Nodes::Fake(fleet)), Half::Goes)? {
        Ok(up) if up.new => up,
        Ok(_) => bail!("somebody else was first to make a cluster in {}: wait for its end", dir.display()),
        Err(lack) => return Ok(Some(lack)),
    };
    let loan = Loan::begin(open(place()?)?)?;
    drop(up);
    let ends = fleet::ends(&loan.site.place).display().to_string();
    let ran = loan.inside().and_then(|inside| run(&inside, &ends));
    loan.end(ran).map(|()| None)
}

/// Takes down what was left behind, if nobody works with it.
fn clear(place: &Place) -> anyhow::Result<()> {
    let _lock = lock::change(place)?;
    if let Some(journal) = Journal::open(&place.journal())?
        && journal.on_loan()?
    {
        bail!("somebody else works with the cluster in {}: wait for that", place.dir().display());
    }
    down::run(place)
}

fn skip(lack: &str) -> ExitCode {
    println!("SKIPPED: {lack}");
    ExitCode::from(SKIPPED)
}

fn open(place: Place) -> anyhow::Result<Site> {
    match Journal::open(&place.journal())? {
        Some(journal) => Ok(Site { place, journal }),
        None => bail!("no cluster in {}; `{}` makes one", place.dir().display(), place.order("up")),
    }
}

fn take_down(place: &Place) -> anyhow::Result<ExitCode> {
    if !place.dir().exists() {
        println!("no cluster in {}", place.dir().display());
        return Ok(ExitCode::SUCCESS);
    }
    let _lock = lock::change(place)?;
    let journal = Journal::open(&place.journal())?;
    if let Some(journal) = &journal
        && journal.on_loan()?
    {
        println!("somebody works with this cluster, tests perhaps; it goes all the same");
    }
    down::run(place)?;
    match journal.is_some() {
        true => println!("the cluster is down"),
        false => println!("no cluster in {}", place.dir().display()),
    }
    Ok(ExitCode::SUCCESS)
}

fn status(site: Site) -> anyhow::Result<ExitCode> {
    let mut whole = site.journal.nodes().is_some();
    for part in site.journal.parts() {
        // What was noted is nsenter or unshare, which lives as long as its child; that one is worth knowing.
        let process = part.process.lives().then(|| part.process.child()).flatten();
        whole &= process.is_some();
        match process {
            Some(process) => println!("{:<28} lives, process {}", part.name, process.pid),
            None => println!("{:<28} does not live; see {}", part.name, site.place.log(&part.name).display()),
        }
    }
    let fake = site.journal.fake();
    let how = if fake { "--output=name" } else { "--output=wide" };
    match control::kubectl(&site, &kubernetes::folder()?, &["get", "nodes", how]) {
        Ok(nodes) if fake => println!("{}", place::say(nodes.lines().count(), true)),
        Ok(nodes) => print!("{nodes}"),
        Err(problem) => {
            whole = false;
            println!("the nodes are not known: {problem:#}");
        }
    }
    if site.journal.nodes().is_none() {
        println!("it did not come up as a whole; `{}` makes it anew", site.place.order("up"));
    }
    Ok(if whole { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Becomes the command: in the network of the control plane, or as a process of a node.
fn exec(site: &Site, machine: Option<&str>, command: &[String]) -> anyhow::Result<ExitCode> {
    let mut inside = match machine {
        Some(machine) => site.inside(machine)?,
        None => site.in_network(CONTROL)?,
    };
    as_administrator(site, &mut inside)?;
    Err(inside.args(command).exec()).context("cannot run nsenter")
}

/// Cargo's setting, for `--config`, by which what it builds runs as `exec` would run it. Cargo itself stays outside, where the
/// network is, and with the environment that it knows: another PATH makes it build much anew.
fn inside(site: &Site) -> anyhow::Result<String> {
    // A copy: cargo builds this program again with the tests, in the place of the one that runs.
    let (new, this) = (site.place.dir().join("xtask.new"), site.place.dir().join("xtask"));
    let copied = fs::copy("/proc/self/exe", &new).and_then(|_| fs::rename(&new, &this));
    copied.with_context(|| format!("cannot make {}", this.display()))?;
    let words =
        [&this.display().to_string(), "cluster", "exec", "--dir", &site.place.dir().display().to_string(), "--"];
    Ok(format!("target.'cfg(all())'.runner={}", serde_json::to_string(&words)?))
}

/// Gives a command kubectl, the cluster's kubeconfig, and the names by which tests find the cluster.
fn as_administrator(site: &Site, command: &mut Command) -> anyhow::Result<()> {
    let programs = [kubernetes::folder()?];
    let old = std::env::var_os("PATH").unwrap_or_default();
    let path = std::env::join_paths(programs.into_iter().chain(std::env::split_paths(&old)))?;
    // Proxies of the caller do not know this network.
    for proxy in ["HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"] {
        command.env_remove(proxy);
    }
    // Tests find the cluster by these.
    command.env("STOKER_TEST_CLUSTER", site.place.dir()).env("STOKER_TEST_KUBECONFIG", site.place.kubeconfig());
    command.env("STOKER_TEST_XTASK", std::env::current_exe()?);
    command.env("PATH", path).env("KUBECONFIG", site.place.kubeconfig());
    // What kubectl learns of this cluster is kept by the address, which others have too.
    command.env("KUBECACHEDIR", site.place.home().join(".kube/cache"));
    Ok(())
}

/// Ends a part as a crash would. Ending a machine is pulling a node's plug.
fn stop(site: &Site, name: &str) -> anyhow::Result<ExitCode> {
    let part = site.journal.part(name)?;
    let Some(process) = part.process.lives().then(|| part.process.child()).flatten() else {
        println!("{name} does not run");
        return Ok(ExitCode::SUCCESS);
    };
    process::signal("KILL", &[process])?;
    let outer = part.process;
    wait::until(&format!("{name} did not end"), up::WAIT, &site.place.log(name), || {
        Ok(match outer.lives() {
            true => wait::Look::NotYet(format!("process {} lives", process.pid)),
            false => wait::Look::Ready,
        })
    })?;
    Ok(ExitCode::SUCCESS)
}

/// Whether a program of this machine can make namespaces, which some containers forbid even to root.
fn can_unshare() -> bool {
    let tried = Command::new("unshare").args(["--fork", "--pid", "--mount-proc", "--net", "--uts", "true"]).output();
    tried.is_ok_and(|output| output.status.success())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_left_behind_goes_unless_somebody_works_with_it() {
        let dir = std::env::temp_dir().join(format!("stoker-left-{}", std::process::id()));
        let place = || Place::new(dir.clone()).unwrap();
        let lock = lock::change(&place()).unwrap();
        let lent = Journal::begin(&place().journal()).unwrap();
        lent.borrow().unwrap();
        drop(lock);
        let told = clear(&place()).unwrap_err().to_string();
        assert!(told.contains("somebody else works"), "{told}");
        assert!(place().journal().exists());
        drop(lent);
        clear(&place()).unwrap();
        assert!(!dir.exists());
        clear(&place()).unwrap();
        assert!(!dir.exists());
    }
}
