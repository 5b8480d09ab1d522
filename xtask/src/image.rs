//! The image of controller and agents: the binary and the libraries that it links, as an OCI layout in `target/image`
//! or where one says.
//!
//! No container engine is needed. The same binary on the same machine gives the same digest. CA certificates are not in
//! it: the binary has its own.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, bail};
use serde_json::json;

use crate::layout;
use crate::shell::{self, output};

/// The name of the image inside the layout.
const NAME: &str = "stoker";
/// How it is built when nobody says.
const PROFILE: &str = "release";
/// Who it runs as, unless the pod says otherwise: agents must be root, the controller must not.
const USER: u32 = 65532;
/// Without it a name would be asked of DNS before /etc/hosts is looked at.
const RESOLVE: &str = "passwd: files\ngroup: files\nhosts: files dns\n";

/// Where the image goes, if anywhere.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Wish {
    /// `registry/name:tag`.
    push: Option<String>,
    /// The registry speaks plain HTTP, or has a certificate of its own.
    insecure: bool,
    /// The profile it is built with.
    profile: String,
    /// A binary that is there already, instead of building one.
    binary: Option<PathBuf>,
    /// The folder of the layout.
    out: Option<PathBuf>,
}

impl Wish {
    /// Reads `[--profile NAME | --binary FILE] [--out DIR] [--push REFERENCE [--insecure]]`.
    pub(crate) fn parse(args: &[&str]) -> anyhow::Result<Self> {
        let mut wish = Self { profile: PROFILE.into(), ..Self::default() };
        let mut args = args.iter();
        while let Some(arg) = args.next() {
            let value = |args: &mut std::slice::Iter<'_, &str>| {
                args.next().map(|value| value.to_string()).with_context(|| format!("{arg} wants a value"))
            };
            match *arg {
                "--push" => wish.push = Some(value(&mut args)?),
                "--profile" => wish.profile = value(&mut args)?,
                "--binary" => wish.binary = Some(value(&mut args)?.into()),
                "--out" => wish.out = Some(value(&mut args)?.into()),
                "--insecure" => wish.insecure = true,
                other => bail!(
                    "unknown argument {other}; image takes --push REFERENCE, --insecure, --out DIR, and --profile NAME or --binary FILE"
                ),
            }
        }
        if wish.binary.is_some() && wish.profile != PROFILE {
            bail!("--binary is built already, so --profile says nothing; give one of them");
        }
        if wish.insecure && wish.push.is_none() {
            bail!("--insecure is about the registry of --push REFERENCE; give that too");
        }
        Ok(wish)
    }
}

/// Builds the binary, makes the image, and pushes it where that is asked.
pub(crate) fn run(wish: &Wish) -> anyhow::Result<()> {
    let binary = wish.binary.clone().map_or_else(|| shell::build(&["stoker"], "stoker", &wish.profile), Ok)?;
    let layout = wish.out.clone().unwrap_or_else(|| shell::root().join("target/image"));
    clear(&layout)?;
    let root = layout.join("root");
    fill(&root, &binary, &libraries(&binary)?)?;
    let digest = pack(&root, &layout)?;
    fs::remove_dir_all(&root)?;
    println!("oci:{}:{NAME} is {digest}", layout.display());
    match &wish.push {
        Some(reference) => push(&layout, reference, wish.insecure),
        None => Ok(()),
    }
}

/// Removes an image that is there: what is left of another binary would stay in the layout for ever. A folder with anything
/// else is not ours.
fn clear(layout: &Path) -> anyhow::Result<()> {
    let dir = layout.display();
    let empty = match fs::read_dir(layout) {
        Ok(mut entries) => entries.next().is_none(),
        Err(problem) if problem.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        Err(problem) => return Err(problem).with_context(|| format!("cannot read {dir}")),
    };
    // One of the two is there from the first step to the last.
    if !empty && !layout.join("oci-layout").is_file() && !layout.join("root/usr/local/bin").is_dir() {
        bail!("{dir} holds something else than an image; give another folder, or empty it");
    }
    fs::remove_dir_all(layout).with_context(|| format!("cannot remove {dir}"))
}

/// What the loader of this machine would load for it, itself included, by absolute paths.
fn libraries(binary: &Path) -> anyhow::Result<BTreeSet<PathBuf>> {
    let output = Command::new("ldd").arg(binary).output().context("cannot run ldd; is this a Linux with glibc?")?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    if ["not a dynamic executable", "statically linked"].iter().any(|text| said.contains(text)) {
        return Ok(BTreeSet::new());
    }
    match output.status.success() {
        true => read_ldd(&said),
        false => bail!("ldd does not understand {}: {}", binary.display(), said.trim()),
    }
}

fn read_ldd(said: &str) -> anyhow::Result<BTreeSet<PathBuf>> {
    let mut libraries = BTreeSet::new();
    for line in said.lines().map(str::trim) {
        if line.ends_with("not found") {
            bail!("a library is missing on this machine: {line}");
        }
        let path = line.split_once("=> ").map_or(line, |(_, path)| path);
        let path = path.split_whitespace().next().unwrap_or_default();
        // The kernel's own page has no path.
        if path.starts_with('/') {
            libraries.insert(PathBuf::from(path));
        }
    }
    Ok(libraries)
}

/// The root file system of the image.
fn fill(root: &Path, binary: &Path, libraries: &BTreeSet<PathBuf>) -> anyhow::Result<()> {
    for folder in ["etc", "tmp", "usr/local/bin"] {
        fs::create_dir_all(root.join(folder))?;
    }
    let text = |path: &str, text: &str| write(&root.join(path), text.as_bytes(), 0o644);
    text("etc/passwd", &format!("root:x:0:0:root:/:/\nstoker:x:{USER}:{USER}:stoker:/:/\n"))?;
    text("etc/group", &format!("root:x:0:\nstoker:x:{USER}:\n"))?;
    text("etc/nsswitch.conf", RESOLVE)?;
    let copies =
        libraries.iter().map(|library| (library.as_path(), root.join(library.strip_prefix("/").unwrap_or(library))));
    for (from, to) in copies.chain([(binary, root.join("usr/local/bin/stoker"))]) {
        let bytes = fs::read(from).with_context(|| format!("cannot read {}", from.display()))?;
        write(&to, &bytes, 0o755)?;
    }
    fs::set_permissions(root.join("tmp"), fs::Permissions::from_mode(0o1777)).context("cannot change /tmp of the image")
}

fn write(path: &Path, bytes: &[u8], mode: u32) -> anyhow::Result<()> {
    let problem = || format!("cannot write {}", path.display());
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder).with_context(problem)?;
    }
    fs::write(path, bytes).with_context(problem)?;
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).with_context(problem)
}

/// A layout of the root file system; returns the digest of its manifest.
fn pack(root: &Path, layout: &Path) -> anyhow::Result<String> {
    let tar = root.with_extension("tar");
    let mut archive = Command::new("tar");
    archive.args(["--create", "--sort=name", "--mtime=@0", "--owner=0", "--group=0", "--numeric-owner", "--mode=go-w"]);
    // Folders are made under the caller's umask; /tmp is for everybody.
    archive.arg("--file").arg(&tar).arg("--directory").arg(root).args(["--exclude=./tmp", "."]);
    output(&mut archive)?;
    let mut tmp = Command::new("tar");
    tmp.args(["--append", "--mtime=@0", "--owner=0", "--group=0", "--numeric-owner"]);
    output(tmp.arg("--file").arg(&tar).arg("--directory").arg(root).arg("./tmp"))?;
    let settings = json!({
        "Entrypoint": ["/usr/local/bin/stoker"],
        "Env": ["PATH=/usr/local/bin"],
        "User": format!("{USER}:{USER}"),
        "WorkingDir": "/",
        "Labels": { "org.opencontainers.image.title": NAME, "org.opencontainers.image.version": env!("CARGO_PKG_VERSION") },
    });
    let digest = layout::write(layout, NAME, &tar, &settings)?;
    fs::remove_file(&tar)?;
    Ok(digest)
}

fn push(layout: &Path, reference: &str, insecure: bool) -> anyhow::Result<()> {
    let digest = layout.join("pushed");
    let mut copy = Command::new("skopeo");
    // Policies of signatures are about images that one takes, not about one's own.
    copy.args(["--insecure-policy", "copy", "--quiet"]);
    if insecure {
        copy.arg("--dest-tls-verify=false");
    }
    copy.arg("--digestfile").arg(&digest);
    copy.arg(format!("oci:{}:{NAME}", layout.display())).arg(format!("docker://{reference}"));
    output(&mut copy).context("the image could not be pushed; is skopeo installed, and does the registry answer?")?;
    // Not that of the layout: layers are compressed on their way.
    println!("pushed to {reference} as {}", fs::read_to_string(&digest)?.trim());
    fs::remove_file(&digest)?;
    println!("now: stoker install --image {reference} | kubectl apply -f -");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_understood() {
        let release = || Wish { profile: "release".into(), ..Wish::default() };
        assert_eq!(Wish::parse(&[]).unwrap(), release());
        let push = Wish { push: Some("r/stoker:1".into()), insecure: true, profile: "dist".into(), ..Wish::default() };
        assert_eq!(Wish::parse(&["--push", "r/stoker:1", "--insecure", "--profile", "dist"]).unwrap(), push);
        assert_eq!(Wish::parse(&["--binary", "x"]).unwrap().binary, Some("x".into()));
        assert_eq!(Wish::parse(&["--out", "x"]).unwrap().out, Some("x".into()));
        let both = ["--binary", "x", "--profile", "dist"];
        for wrong in [&["--push"][..], &["--insecure"], &["r/stoker:1"], &both] {
            assert!(Wish::parse(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn what_ldd_says_is_understood() {
        let said = "\tlinux-vdso.so.1 (0x1)\n\tlibc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x2)\n\t/lib64/ld-linux.so.2 (0x3)\n";
        let paths: Vec<PathBuf> = read_ldd(said).unwrap().into_iter().collect();
        assert_eq!(paths, [PathBuf::from("/lib/x86_64-linux-gnu/libc.so.6"), PathBuf::from("/lib64/ld-linux.so.2")]);
        assert!(read_ldd("\tlibz.so.1 => not found\n").is_err());
    }

    #[test]
    fn an_image_replaces_another_and_nothing_else() {
        let out = std::env::temp_dir().join(format!("stoker-image-out-{}", std::process::id()));
        let wish = Wish { binary: Some("/bin/sh".into()), out: Some(out.clone()), ..Wish::default() };
        run(&wish).unwrap();
        fs::write(out.join("blobs/another"), "x").unwrap();
        run(&wish).unwrap();
        let mut names: Vec<_> = fs::read_dir(&out).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        assert_eq!(names, ["blobs", "index.json", "oci-layout"]);
        assert!(!out.join("blobs/another").exists());
        fs::remove_dir_all(&out).unwrap();
        write(&out.join("letter"), b"dear", 0o600).unwrap();
        assert!(run(&wish).unwrap_err().to_string().contains("something else"));
        assert!(out.join("letter").exists());
        fs::remove_dir_all(out).unwrap();
    }

    /// With a program of this machine in the place of ours: it runs from the root that was made, and from nothing else.
    #[test]
    fn an_image_is_whole_and_the_same_each_time() {
        let dir = std::env::temp_dir().join(format!("stoker-image-{}", std::process::id()));
        let program = std::env::current_exe().unwrap();
        let digests = ["one", "two"].map(|name| {
            let root = dir.join(name).join("root");
            fill(&root, &program, &libraries(&program).unwrap()).unwrap();
            pack(&root, &dir.join(name).join("layout")).unwrap()
        });
        assert_eq!(digests[0], digests[1]);
        if shell::is_root() {
            let said =
                output(Command::new("chroot").arg(dir.join("one/root")).args(["/usr/local/bin/stoker", "--list"]));
            assert!(said.unwrap().contains("an_image_is_whole"), "the program does not run from the image alone");
        } else {
            println!("SKIPPED: running from the image's root needs chroot, which only root may");
        }
        fs::remove_dir_all(dir).unwrap();
    }
}
