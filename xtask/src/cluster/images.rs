//! Base images, made of Debian's static busybox: an OCI layout in the cluster's folder, pushed to its registry. Nothing is
//! pulled from anywhere.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::Context as _;
use serde_json::json;

use super::place::{CONTROL, REGISTRY};
use super::site::{Site, write};
use super::wait::{self, Look};
use crate::layout;
use crate::shell::output;

/// The image of a pod's sandbox.
pub(crate) const PAUSE: &str = "10.77.0.1:5000/pause:1";

/// Names, and what each does when it is told nothing else.
const IMAGES: [(&str, &[&str]); 2] = [
    ("busybox:1", &["/bin/sh"]),
    // Ends at once when asked to, and adopts orphans until then.
    ("pause:1", &["/bin/sh", "-c", "trap 'exit 0' TERM INT; while :; do sleep 3600 & wait $!; done"]),
];
const WAIT: Duration = Duration::from_secs(300);

/// Makes them, and pushes each as soon as the registry answers.
pub(crate) fn push(site: &Site) -> anyhow::Result<()> {
    let layer = layer(site)?;
    for (name, command) in IMAGES {
        let folder = site.place.dir().join("images").join(name.replace(':', "-"));
        layout::write(&folder, "x", &layer, &json!({"Cmd": command, "Env": ["PATH=/bin"]}))?;
        let log = site.place.log("control/registry");
        wait::until(&format!("the image {name} did not get into the registry"), WAIT, &log, || {
            if !site.journal.part("control/registry")?.process.lives() {
                return Ok(Look::Failed("the registry ended".to_string()));
            }
            // Inside, for skopeo keeps a list of layers in /var/lib.
            let mut copy = site.errand_inside(CONTROL)?;
            copy.args(["skopeo", "--insecure-policy", "copy", "--quiet", "--dest-tls-verify=false"]);
            copy.arg(format!("oci:{}:x", folder.display())).arg(format!("docker://{REGISTRY}/{name}"));
            let copied = output(&mut copy);
            Ok(copied.map_or_else(|problem| Look::NotYet(format!("{problem:#}")), |_| Look::Ready))
        })?;
    }
    Ok(())
}

/// A tar archive of a root file system: busybox under all of its names, and the folders programs expect.
fn layer(site: &Site) -> anyhow::Result<PathBuf> {
    let images = site.place.dir().join("images");
    let (root, tar) = (images.join("root"), images.join("layer.tar"));
    for folder in ["bin", "dev", "etc", "home", "proc", "root", "sys", "tmp", "usr", "var"] {
        fs::create_dir_all(root.join(folder)).with_context(|| format!("cannot make {}", root.display()))?;
    }
    write(&root.join("etc/passwd"), "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n")?;
    write(&root.join("etc/group"), "root:x:0:\nnobody:x:65534:\n")?;
    let busybox = root.join("bin/busybox");
    fs::copy("/bin/busybox", &busybox).context("cannot copy /bin/busybox; is busybox-static installed?")?;
    for name in output(site.mark(Command::new(&busybox).arg("--list"))?)?.lines().filter(|name| *name != "busybox") {
        let link = root.join("bin").join(name);
        let _ = fs::remove_file(&link);
        std::os::unix::fs::symlink("busybox", &link).with_context(|| format!("cannot make {}", link.display()))?;
    }
    let mut archive = Command::new("tar");
    archive.args(["--create", "--sort=name", "--mtime=@0", "--owner=0", "--group=0", "--numeric-owner", "--file"]);
    output(site.mark(&mut archive)?.arg(&tar).arg("--directory").arg(&root).arg("."))?;
    Ok(tar)
}
