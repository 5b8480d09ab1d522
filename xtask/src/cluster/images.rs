//! Base images, made of Debian's static busybox: an OCI layout in the cluster's folder, pushed to its registry. Nothing is
//! pulled from anywhere.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::Context as _;
use serde_json::{Value, json};

use super::place::{CONTROL, Place, REGISTRY};
use super::site::{Site, output, write};
use super::wait::{self, Look};

/// The image of a pod's sandbox.
pub(crate) const PAUSE: &str = "10.77.0.1:5000/pause:1";

/// Names, and what each does when it is told nothing else.
const IMAGES: [(&str, &[&str]); 2] = [
    ("busybox:1", &["/bin/sh"]),
    // Ends at once when asked to, and adopts orphans until then.
    ("pause:1", &["/bin/sh", "-c", "trap 'exit 0' TERM INT; while :; do sleep 3600 & wait $!; done"]),
];
const WAIT: Duration = Duration::from_secs(60);

/// Makes them, and pushes each as soon as the registry answers.
pub(crate) fn push(site: &Site) -> anyhow::Result<()> {
    let layout = site.place.dir().join("images");
    let layer = layer(&site.place)?;
    for (name, command) in IMAGES {
        let folder = layout.join(name.replace(':', "-"));
        make(&folder, &layer, command)?;
        let log = site.place.log("control/registry");
        wait::until(&format!("the image {name} in the registry"), WAIT, &log, || {
            if !site.journal.part("control/registry")?.process.lives() {
                return Ok(Look::Failed("the registry ended".to_string()));
            }
            let mut copy = site.errand(CONTROL)?;
            copy.args(["skopeo", "--insecure-policy", "copy", "--quiet", "--dest-tls-verify=false"]);
            copy.arg(format!("oci:{}:x", folder.display())).arg(format!("docker://{REGISTRY}/{name}"));
            let copied = output(&mut copy);
            Ok(copied.map_or_else(|problem| Look::NotYet(format!("{problem:#}")), |_| Look::Ready))
        })?;
    }
    Ok(())
}

/// A tar archive of a root file system: busybox under all of its names, and the folders programs expect.
fn layer(place: &Place) -> anyhow::Result<PathBuf> {
    let (root, tar) = (place.dir().join("images/root"), place.dir().join("images/layer.tar"));
    for folder in ["bin", "dev", "etc", "home", "proc", "root", "sys", "tmp", "usr", "var"] {
        fs::create_dir_all(root.join(folder)).with_context(|| format!("cannot make {}", root.display()))?;
    }
    write(&root.join("etc/passwd"), "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n")?;
    write(&root.join("etc/group"), "root:x:0:\nnobody:x:65534:\n")?;
    let busybox = root.join("bin/busybox");
    fs::copy("/bin/busybox", &busybox).context("cannot copy /bin/busybox; is busybox-static installed?")?;
    for name in output(Command::new(&busybox).arg("--list"))?.lines().filter(|name| *name != "busybox") {
        let link = root.join("bin").join(name);
        let _ = fs::remove_file(&link);
        std::os::unix::fs::symlink("busybox", &link).with_context(|| format!("cannot make {}", link.display()))?;
    }
    let mut archive = Command::new("tar");
    archive.args(["--create", "--sort=name", "--mtime=@0", "--owner=0", "--group=0", "--numeric-owner", "--file"]);
    output(archive.arg(&tar).arg("--directory").arg(&root).arg("."))?;
    Ok(tar)
}

/// An OCI layout with one image of one layer.
fn make(folder: &Path, layer: &Path, command: &[&str]) -> anyhow::Result<()> {
    let architecture = match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    };
    let tar = blob(folder, &fs::read(layer)?, "application/vnd.oci.image.layer.v1.tar")?;
    let config = json!({
        "architecture": architecture, "os": "linux",
        "config": {"Cmd": command, "Env": ["PATH=/bin"]},
        "rootfs": {"type": "layers", "diff_ids": [tar["digest"]]},
    });
    let config = blob(folder, config.to_string().as_bytes(), "application/vnd.oci.image.config.v1+json")?;
    let kind = "application/vnd.oci.image.manifest.v1+json";
    let manifest = json!({"schemaVersion": 2, "mediaType": kind, "config": config, "layers": [tar]});
    let mut manifest = blob(folder, manifest.to_string().as_bytes(), kind)?;
    manifest["annotations"] = json!({"org.opencontainers.image.ref.name": "x"});
    write(&folder.join("index.json"), &json!({"schemaVersion": 2, "manifests": [manifest]}).to_string())?;
    write(&folder.join("oci-layout"), r#"{"imageLayoutVersion": "1.0.0"}"#)
}

/// Writes a blob under its digest; gives its descriptor.
fn blob(folder: &Path, bytes: &[u8], kind: &str) -> anyhow::Result<Value> {
    let blobs = folder.join("blobs/sha256");
    fs::create_dir_all(&blobs).with_context(|| format!("cannot make {}", blobs.display()))?;
    let fresh = blobs.join("fresh");
    fs::write(&fresh, bytes).with_context(|| format!("cannot write {}", fresh.display()))?;
    let sum = output(Command::new("sha256sum").arg(&fresh))?;
    let sum = sum.split_whitespace().next().context("sha256sum printed nothing")?;
    fs::rename(&fresh, blobs.join(sum))?;
    Ok(json!({"mediaType": kind, "size": bytes.len(), "digest": format!("sha256:{sum}")}))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_layout_names_only_blobs_that_it_has() {
        let dir = std::env::temp_dir().join(format!("stoker-images-{}", std::process::id()));
        write(&dir.join("layer.tar"), "not looked at").unwrap();
        make(&dir.join("out"), &dir.join("layer.tar"), &["/bin/sh"]).unwrap();
        let read = |path: PathBuf| serde_json::from_slice::<Value>(&fs::read(path).unwrap()).unwrap();
        let of = |descriptor: &Value| {
            let digest = descriptor["digest"].as_str().unwrap().strip_prefix("sha256:").unwrap().to_string();
            let path = dir.join("out/blobs/sha256").join(digest);
            assert_eq!(fs::metadata(&path).unwrap().len(), descriptor["size"].as_u64().unwrap());
            path
        };
        let manifest = read(of(&read(dir.join("out/index.json"))["manifests"][0]));
        assert_eq!(fs::read_to_string(of(&manifest["layers"][0])).unwrap(), "not looked at");
        let config = read(of(&manifest["config"]));
        assert_eq!(config["rootfs"]["diff_ids"][0], manifest["layers"][0]["digest"]);
        assert_eq!(config["config"]["Cmd"], json!(["/bin/sh"]));
        fs::remove_dir_all(dir).unwrap();
    }
}
