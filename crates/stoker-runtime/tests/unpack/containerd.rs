//! The same images through a real containerd: what it leaves on disk is what we have to leave. `STOKER_CONTAINERD_DIR`
//! may name the directory of another `containerd` and `ctr` than those on the path.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use proptest::strategy::{Strategy as _, ValueTree as _};
use proptest::test_runner::TestRunner;
use serde_json::json;
use sha2::{Digest as _, Sha256};
use stoker_runtime::unpack::Error;

use crate::archive::archive;
use crate::cases::{self, Case};
use crate::hostile::odd;
use crate::listing::assert_same;
use crate::{root, scratch, stack};

pub(crate) fn digest(bytes: &[u8]) -> String {
    let hex: Vec<String> = Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect();
    format!("sha256:{}", hex.concat())
}

/// A containerd of our own, gone with the test.
pub(crate) struct Daemon {
    process: Child,
    dir: PathBuf,
}

fn program(name: &str) -> PathBuf {
    std::env::var_os("STOKER_CONTAINERD_DIR").map_or_else(|| name.into(), |dir| Path::new(&dir).join(name))
}

impl Daemon {
    /// Starts one, or says that there is none.
    pub(crate) fn start(dir: &Path) -> Option<Self> {
        if !root() {
            return None;
        }
        if Command::new(program("containerd")).arg("--version").output().is_err() {
            println!("SKIPPED: there is no containerd to compare with");
            return None;
        }
        let config = format!(
            "version = 2\nroot = \"{0}/root\"\nstate = \"{0}/state\"\n\
             disabled_plugins = [\"io.containerd.grpc.v1.cri\", \"io.containerd.internal.v1.opt\"]\n\
             [grpc]\n  address = \"{0}/sock\"\n[ttrpc]\n  address = \"{0}/ttrpc\"\n",
            dir.display()
        );
        fs::write(dir.join("config.toml"), config).unwrap();
        let log = File::create(dir.join("log")).unwrap();
        let process = Command::new(program("containerd"))
            .arg("--config")
            .arg(dir.join("config.toml"))
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap();
        let mut daemon = Self { process, dir: dir.to_owned() };
        while !daemon.ctr(&["--connect-timeout", "2s", "version"]).status.success() {
            assert!(daemon.process.try_wait().unwrap().is_none(), "containerd ended: {}", daemon.log());
            std::thread::yield_now();
        }
        Some(daemon)
    }

    fn log(&self) -> String {
        fs::read_to_string(self.dir.join("log")).unwrap()
    }

    pub(crate) fn ctr(&self, arguments: &[&str]) -> Output {
        let address = self.dir.join("sock");
        let fixed = ["--address", address.to_str().unwrap(), "-n", "test"];
        Command::new(program("ctr")).args(fixed).args(arguments).output().unwrap()
    }

    /// Imports and unpacks an image; gives its layers' directories, lowest first.
    pub(crate) fn unpack(&self, name: &str, layers: &[cases::Layer]) -> Result<Vec<PathBuf>, String> {
        let file = self.dir.join("image.tar");
        let chain = write_image(&file, name, layers);
        let told = |output: Output| match output.status.success() {
            true => Ok(String::from_utf8(output.stdout).unwrap()),
            false => Err(String::from_utf8_lossy(&output.stderr).into_owned()),
        };
        told(self.ctr(&["images", "import", file.to_str().unwrap()]))?;
        let view = format!("view of {name}");
        let mount = told(self.ctr(&["snapshots", "view", "--target", "/x", &view, &chain]))?;
        let marker = "lowerdir=";
        let list = match mount.find(marker) {
            Some(at) => mount[at + marker.len()..].split([' ', ',', '\n']).next().unwrap(),
            None => mount.split_whitespace().find(|word| word.ends_with("/fs")).unwrap(),
        };
        Ok(list.split(':').rev().map(PathBuf::from).collect())
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// An OCI layout in a tar, as `ctr images import` takes it. Returns the chain ID of its top layer.
fn write_image(file: &Path, name: &str, layers: &[cases::Layer]) -> String {
    let mut out = tar::Builder::new(File::create(file).unwrap());
    let mut put = |path: String, bytes: &[u8]| {
        let mut header = tar::Header::new_gnu();
        header.set_size(bytes.len() as u64);
        header.set_mode(0o644);
        out.append_data(&mut header, path, bytes).unwrap();
    };
    let mut blob = |media_type: &str, bytes: &[u8]| {
        let digest = digest(bytes);
        put(format!("blobs/{}", digest.replace(':', "/")), bytes);
        json!({"mediaType": media_type, "digest": digest, "size": bytes.len()})
    };
    let ids: Vec<String> = layers.iter().map(|layer| digest(&layer.plain)).collect();
    let architecture = match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    };
    let config = json!({"architecture": architecture, "os": "linux", "config": {}, "history": [{"comment": name}],
        "rootfs": {"type": "layers", "diff_ids": ids}});
    let config = blob("application/vnd.oci.image.config.v1+json", config.to_string().as_bytes());
    let layers: Vec<_> = layers.iter().map(|layer| blob(layer.media_type, &layer.stored)).collect();
    let media_type = "application/vnd.oci.image.manifest.v1+json";
    let manifest = json!({"schemaVersion": 2, "mediaType": media_type, "config": config, "layers": layers});
    let mut manifest = blob(media_type, manifest.to_string().as_bytes());
    let reference = format!("example.com/{}:1", name.replace(' ', "-").to_lowercase());
    manifest["annotations"] = json!({"io.containerd.image.name": reference});
    let index = json!({"schemaVersion": 2, "manifests": [&manifest]});
    put("index.json".into(), index.to_string().as_bytes());
    put("oci-layout".into(), br#"{"imageLayoutVersion":"1.0.0"}"#);
    out.into_inner().unwrap().flush().unwrap();
    ids.into_iter().reduce(|chain, id| digest(format!("{chain} {id}").as_bytes())).unwrap()
}

#[test]
fn leaves_what_containerd_leaves() {
    let dir = scratch();
    let Some(daemon) = Daemon::start(dir.path()) else { return };
    for (i, case) in cases::all().iter().enumerate() {
        let mine = dir.path().join(format!("case-{i}"));
        fs::create_dir(&mine).unwrap();
        compare(daemon.unpack(case.name, &case.layers), case, &mine);
    }
}

fn compare(theirs: Result<Vec<PathBuf>, String>, case: &Case, dir: &Path) {
    let ours = stack(&case.layers, dir);
    match (ours, theirs) {
        (Ok(ours), Ok(theirs)) => {
            assert!(case.good, "{} is taken by both", case.name);
            assert_eq!(ours.len(), theirs.len());
            for (i, (ours, theirs)) in ours.iter().zip(&theirs).enumerate() {
                assert_same(&format!("{}, layer {i}", case.name), ours, theirs);
            }
        }
        (Err(ours), Err(theirs)) => assert!(!case.good, "{}: ours: {ours}\ncontainerd: {theirs}", case.name),
        (Ok(_), Err(theirs)) => panic!("only containerd refuses {}: {theirs}", case.name),
        // Left to containerd, which is allowed where nobody expects us to do it.
        (Err(Error::Unsupported { .. }), Ok(_)) if case.name == "random" => {}
        (Err(ours), Ok(_)) => panic!("only we refuse {}: {ours}", case.name),
    }
}

/// Archives nobody thought of. The same ones each time, so that a failure stays; `STOKER_RANDOM_IMAGES` asks for more.
#[test]
fn random_images_end_as_with_containerd() {
    let dir = scratch();
    let Some(daemon) = Daemon::start(dir.path()) else { return };
    let count = std::env::var("STOKER_RANDOM_IMAGES").ok().and_then(|count| count.parse().ok()).unwrap_or(30);
    let mut runner = TestRunner::deterministic();
    let mut taken = 0;
    for i in 0..count {
        let layers = [(); 2].map(|()| odd().new_tree(&mut runner).unwrap().current());
        println!("image {i}: {layers:#?}");
        let layers: Vec<_> = layers.iter().map(|items| cases::layer(cases::TAR, archive(items))).collect();
        let mine = dir.path().join(format!("random-{i}"));
        fs::create_dir(&mine).unwrap();
        let theirs = daemon.unpack(&format!("random {i}"), &layers);
        let good = theirs.is_ok();
        taken += usize::from(good);
        compare(theirs, &Case { name: "random", layers, good }, &mine);
    }
    println!("{taken} of {count} images are taken");
    assert!(taken > 0, "containerd takes some of them");
}
