//! Debian's packages for what this project runs: a table of programs and packages comes in, what is still missing goes out.
//! Installs only where that is possible (root, apt-get), and never lets a package start its daemon.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;

use crate::shell;

/// What Debian's packages ask whether their daemons may start.
const POLICY: &str = "/usr/sbin/policy-rc.d";
/// Our answer: no. It says whose it is, so that one which a killed run left is not taken for the machine's own.
const OURS: &str = "#!/bin/sh\n# Of Stoker's `cargo xtask`, for as long as that installs packages. Remove it when none runs.\nexit 101\n";

/// Installs the packages of programs that are missing, when this is Debian and we are root. A program with a slash in its
/// name is a file, one without is looked for on the PATH. Gives the packages that are missing still.
pub(crate) fn install(programs: &[(&str, &'static str)]) -> Vec<&'static str> {
    let missing = missing(programs);
    if missing.is_empty() || !shell::is_root() || !shell::is_there("apt-get") {
        return missing;
    }
    println!("installing {}", missing.join(", "));
    let apt = |args: &[&str]| {
        let status = Command::new("apt-get").args(args).env("DEBIAN_FRONTEND", "noninteractive").status();
        status.is_ok_and(|status| status.success())
    };
    let _quiet = Quiet::new(Path::new(POLICY));
    let packages: Vec<&str> = ["install", "-y", "-qq", "--no-install-recommends"].into_iter().chain(missing).collect();
    if !(apt(&["update", "-qq"]) && apt(&packages)) {
        println!("apt-get failed");
    }
    self::missing(programs)
}

fn missing(programs: &[(&str, &'static str)]) -> Vec<&'static str> {
    let is_there = |program: &str| match program.contains('/') {
        true => Path::new(program).is_file(),
        false => shell::is_there(program),
    };
    programs.iter().filter(|(program, _)| !is_there(program)).map(|(_, package)| *package).collect()
}

/// As long as it lives, packages that are installed do not start their daemons: tests have instances of their own.
struct Quiet<'a> {
    /// `None` where the machine has a policy of its own, which it keeps.
    ours: Option<&'a Path>,
}

impl<'a> Quiet<'a> {
    fn new(policy: &'a Path) -> Self {
        if policy.exists() && !fs::read(policy).is_ok_and(|text| text == OURS.as_bytes()) {
            return Self { ours: None };
        }
        let written =
            fs::write(policy, OURS).and_then(|()| fs::set_permissions(policy, fs::Permissions::from_mode(0o755)));
        if let Err(problem) = written {
            println!("cannot write {} ({problem}); daemons of new packages may start", policy.display());
        }
        Self { ours: Some(policy) }
    }
}

impl Drop for Quiet<'_> {
    fn drop(&mut self) {
        if let Some(policy) = self.ours {
            let _ = fs::remove_file(policy);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_missing_is_wanted() {
        let programs = [("sh", "dash"), ("/bin/sh", "dash"), ("no-such-program", "a"), ("/no/such/file", "b")];
        assert_eq!(missing(&programs), ["a", "b"]);
    }

    #[test]
    fn a_policy_that_a_killed_run_left_goes_and_the_machines_own_stays() {
        let policy = std::env::temp_dir().join(format!("stoker-policy-{}", std::process::id()));
        let quiet = || drop(Quiet::new(&policy));
        std::mem::forget(Quiet::new(&policy));
        assert!(shell::output(&mut Command::new(&policy)).is_err(), "daemons may start");
        quiet();
        assert!(!policy.exists());
        fs::write(&policy, "#!/bin/sh\nexit 101\n").unwrap();
        quiet();
        assert!(policy.exists());
        fs::remove_file(policy).unwrap();
    }
}
