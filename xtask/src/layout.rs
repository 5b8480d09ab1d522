//! Images as OCI layouts: a tar archive and an image's settings come in; a folder goes out that skopeo copies from. One image
//! of one layer, for this machine's architecture. It never compresses, and removes nothing from the folder.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::Context as _;
use serde_json::{Value, json};

use crate::shell;

const LAYER: &str = "application/vnd.oci.image.layer.v1.tar";
const CONFIG: &str = "application/vnd.oci.image.config.v1+json";
const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";

/// Writes the layout of `oci:FOLDER:NAME`; returns the digest of its manifest. `settings` are what a container of the image
/// has when nobody says otherwise: `Cmd`, `Env` and their like.
pub(crate) fn write(folder: &Path, name: &str, layer: &Path, settings: &Value) -> anyhow::Result<String> {
    let tar = fs::read(layer).with_context(|| format!("cannot read {}", layer.display()))?;
    let layer = blob(folder, &tar, LAYER)?;
    let config = json!({
        "architecture": architecture(), "os": "linux", "config": settings,
        "rootfs": {"type": "layers", "diff_ids": [layer["digest"]]},
    });
    let config = blob(folder, config.to_string().as_bytes(), CONFIG)?;
    let manifest = json!({"schemaVersion": 2, "mediaType": MANIFEST, "config": config, "layers": [layer]});
    let mut manifest = blob(folder, manifest.to_string().as_bytes(), MANIFEST)?;
    let digest = manifest["digest"].as_str().unwrap_or_default().to_string();
    manifest["annotations"] = json!({"org.opencontainers.image.ref.name": name});
    manifest["platform"] = json!({"architecture": architecture(), "os": "linux"});
    let index = json!({"schemaVersion": 2, "manifests": [manifest]});
    for (file, value) in [("index.json", index), ("oci-layout", json!({"imageLayoutVersion": "1.0.0"}))] {
        let path = folder.join(file);
        fs::write(&path, value.to_string()).with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(digest)
}

/// Writes a blob under its digest; gives its descriptor.
fn blob(folder: &Path, bytes: &[u8], kind: &str) -> anyhow::Result<Value> {
    let blobs = folder.join("blobs/sha256");
    fs::create_dir_all(&blobs).with_context(|| format!("cannot make {}", blobs.display()))?;
    let fresh = blobs.join("fresh");
    fs::write(&fresh, bytes).with_context(|| format!("cannot write {}", fresh.display()))?;
    let sum = shell::output(Command::new("sha256sum").arg(&fresh))?;
    let sum = sum.split_whitespace().next().context("sha256sum printed nothing")?;
    fs::rename(&fresh, blobs.join(sum)).with_context(|| format!("cannot rename {}", fresh.display()))?;
    Ok(json!({"mediaType": kind, "size": bytes.len(), "digest": format!("sha256:{sum}")}))
}

/// As OCI names it.
fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    #[test]
    fn a_layout_names_only_blobs_that_it_has() {
        let dir = std::env::temp_dir().join(format!("stoker-layout-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        fs::write(dir.join("layer.tar"), "not looked at").unwrap();
        let digest = write(&dir.join("out"), "x", &dir.join("layer.tar"), &json!({"Cmd": ["/bin/sh"]})).unwrap();
        let read = |path: PathBuf| serde_json::from_slice::<Value>(&fs::read(path).unwrap()).unwrap();
        let of = |descriptor: &Value| {
            let digest = descriptor["digest"].as_str().unwrap().strip_prefix("sha256:").unwrap().to_string();
            let path = dir.join("out/blobs/sha256").join(digest);
            assert_eq!(fs::metadata(&path).unwrap().len(), descriptor["size"].as_u64().unwrap());
            path
        };
        let index = read(dir.join("out/index.json"));
        assert_eq!(index["manifests"][0]["digest"], digest);
        assert_eq!(index["manifests"][0]["annotations"]["org.opencontainers.image.ref.name"], "x");
        let manifest = read(of(&index["manifests"][0]));
        assert_eq!(fs::read_to_string(of(&manifest["layers"][0])).unwrap(), "not looked at");
        let config = read(of(&manifest["config"]));
        assert_eq!(config["rootfs"]["diff_ids"][0], manifest["layers"][0]["digest"]);
        assert_eq!(config["config"]["Cmd"], json!(["/bin/sh"]));
        assert_eq!(fs::read_dir(dir.join("out/blobs/sha256")).unwrap().count(), 3);
        fs::remove_dir_all(dir).unwrap();
    }
}
