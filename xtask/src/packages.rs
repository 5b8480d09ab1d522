//! Debian's packages for what this project runs: a table of programs and packages comes in, what is still missing goes out.
//! Installs only where that is possible (root, apt-get), and never lets a package start its daemon.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;

use crate::shell;

/// What Debian's packages ask whether their daemons may start.
const POLICY: &str = "/usr/sbin/policy-rc.d";

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
    let _quiet = Quiet::new();
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
struct Quiet {
    ours: bool,
}

impl Quiet {
    fn new() -> Self {
        // A machine with a policy of its own keeps it.
        if Path::new(POLICY).exists() {
            return Self { ours: false };
        }
        let written = fs::write(POLICY, "#!/bin/sh\nexit 101\n")
            .and_then(|()| fs::set_permissions(POLICY, fs::Permissions::from_mode(0o755)));
        if let Err(problem) = written {
            println!("cannot write {POLICY} ({problem}); daemons of new packages may start");
        }
        Self { ours: true }
    }
}

impl Drop for Quiet {
    fn drop(&mut self) {
        if self.ours {
            let _ = fs::remove_file(POLICY);
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
}
