//! The fleet of simulated nodes, as one more part of the control plane's machine: its program, what the API server must have
//! before it starts, its command line, and when it is up.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::control::{self, kubectl};
use super::place::{CONTROL, Fleet, Place};
use super::site::{PATH, Site};
use super::wait::{self, Look};
use crate::shell;

/// Its name as a part.
pub(crate) const FLEET: &str = "control/fleet";
/// Each agent asks six things before it is registered, and two cores answer about a thousand in a second.
const WAIT: Duration = Duration::from_secs(300);
const WAIT_EACH: Duration = Duration::from_millis(50);

/// Mounts a disk of memory over /mnt, which the control plane's machine has no use for and nobody else sees: five thousand
/// agents that sync ledgers to one disk would wait for it and for nothing else, and paths of sockets must be short.
/// $1: the kubeconfig; the rest: the command.
const START: &str = r#"
set -e
mountpoint -q /mnt || mount -t tmpfs -o mode=0700 tmpfs /mnt
export KUBECONFIG=$1
shift
exec "$@"
"#;

/// The program, built where it is not.
pub(crate) fn build(fleet: &Fleet) -> anyhow::Result<PathBuf> {
    let binary = fleet.binary.as_ref().map(PathBuf::from);
    binary.map_or_else(|| shell::build(&["stoker-testbed", "stoker"], "fleet", "release"), Ok)
}

/// Where it tells the ends of pulls.
pub(crate) fn ends(place: &Place) -> PathBuf {
    place.machine(CONTROL).join("ends")
}

/// Installs what `stoker install` prints, and starts the fleet. Controller and agents as pods are only objects here: nobody
/// makes pods of them.
pub(crate) fn start(site: &mut Site, fleet: &Fleet, kubernetes: &Path, program: &Path) -> anyhow::Result<()> {
    let manifests = shell::root().join("deploy/install.yaml").display().to_string();
    // Again and again: a server that has just started does not answer everything in time.
    control::until_asked(site, || kubectl(site, kubernetes, &["apply", "--filename", &manifests]))?;
    let kinds = ["crd/preheats.stoker.dev", "crd/nodepreheats.stoker.dev"];
    let established = ["wait", "--for=condition=Established", kinds[0], kinds[1]];
    control::until_asked(site, || kubectl(site, kubernetes, &established))?;
    let kubeconfig = site.place.kubeconfig().display().to_string();
    let mut command = vec!["sh".to_string(), "-c".to_string(), START.to_string(), "sh".to_string(), kubeconfig];
    command.extend([program.display().to_string(), "--data=/mnt".to_string(), format!("--nodes={}", fleet.nodes)]);
    command.push(format!("--ends={}", ends(&site.place).display()));
    command.extend(fleet.pull_time.iter().map(|time| format!("--pull-time={time}")));
    command.extend(fleet.fail_every.iter().map(|every| format!("--fail-every={every}")));
    let (machine, name) = FLEET.split_once('/').unwrap_or((CONTROL, FLEET));
    site.start(machine, name, PATH, &command)?;
    let (process, log) = (site.journal.part(FLEET)?.process, site.place.log(FLEET));
    let longest = WAIT + WAIT_EACH * u32::try_from(fleet.nodes).unwrap_or(u32::MAX);
    let said = format!("{} agents are registered", fleet.nodes);
    wait::until("the fleet did not come up", longest, &log, || {
        Ok(match (fs::read_to_string(&log).unwrap_or_default().contains(&said), process.lives()) {
            (true, true) => Look::Ready,
            (_, false) => Look::Failed("its process ended".to_string()),
            (false, true) => Look::NotYet("not all agents are registered".to_string()),
        })
    })
}
