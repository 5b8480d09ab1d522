use super::*;

fn told(text: &str) -> ContainerdConfig {
    of_file(&Loaded { table: text.parse().unwrap(), complete: true, ..Loaded::default() }, VisibleFiles::whole())
}

#[test]
fn containerd_1_tells_by_cri_and_2_does_not() {
    let one = r#"{"containerd": {"snapshotter": "native", "discardUnpackedLayers": true},
                  "registry": {"configPath": "/a:/b", "mirrors": null}, "rootDir": "/x"}"#;
    let expected = ContainerdConfig {
        snapshotter: Some("native".into()),
        discards: true,
        hosts: vec!["/a".into(), "/b".into()],
        verifiers: None,
        sight: VisibleFiles::default(),
    };
    assert_eq!(of_one(one), Some(expected));
    assert_eq!(of_one(r#"{"containerd": {"defaultRuntimeName": "runc"}, "rootDir": "/x"}"#), None);
}

#[test]
fn a_file_of_the_new_or_the_old_form_is_understood() {
    let usual = told("version = 3");
    assert_eq!(usual.hosts, HOSTS.map(PathBuf::from));
    assert_eq!((usual.discards, usual.verifiers), (false, Some(vec![VERIFIERS.into()])));
    let new = told(
        r#"
        [plugins."io.containerd.cri.v1.images"]
          discard_unpacked_layers = true
        [plugins."io.containerd.cri.v1.images".registry]
          config_path = "/certs"
        "#,
    );
    assert_eq!((new.discards, new.hosts), (true, vec!["/certs".into()]));
    let old = |runtimes: &str| {
        told(&format!(
            r#"
            [plugins."io.containerd.grpc.v1.cri".registry]
              config_path = "/certs"
            [plugins."io.containerd.grpc.v1.cri".containerd]
              discard_unpacked_layers = true
            {runtimes}
            "#
        ))
    };
    assert_eq!(old("").hosts, [PathBuf::from("/certs")]);
    assert!(!old("").discards, "as containerd 2 overlooks it");
    assert!(old(r#"[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]"#).discards);
    let mirrors = told(r#"[plugins."io.containerd.grpc.v1.cri".registry.mirrors."docker.io"]"#);
    assert_eq!(mirrors.hosts, Vec::<PathBuf>::new(), "one with mirrors of the oldest form reads no hosts.toml");
    told("plugins = 1\nimports = \"x\"");
}

/// A directory for files of settings.
struct Files(tempfile::TempDir);

impl Files {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().canonicalize().unwrap().join(name)
    }

    fn write(&self, name: &str, text: &str) {
        fs::create_dir_all(self.path(name).parent().unwrap()).unwrap();
        fs::write(self.path(name), text).unwrap();
    }

    fn load(&self, drop_ins: Option<&str>) -> Loaded {
        load(&self.path("config.toml"), drop_ins, &VisibleFiles::whole())
    }

    fn hosts(&self) -> Vec<PathBuf> {
        of_file(&self.load(None), VisibleFiles::whole()).hosts
    }
}

#[test]
fn imports_count_last_and_never_end() {
    let files = Files::new();
    let set = |path: &str| format!("[plugins.\"io.containerd.cri.v1.images\".registry]\nconfig_path = {path:?}\n");
    let main = format!("imports = [\"config.toml\", \"a-*.toml\", \"gone.toml\"]\n{}", set("/first"));
    files.write("config.toml", &main);
    files.write("a-1.toml", &set("/second"));
    let config = files.path("config.toml");
    files.write("a-2.toml", &format!("imports = [\"{}\"]\n{}", config.display(), set("/third")));
    files.write("b-3.toml", &set("/never"));
    assert_eq!(files.hosts(), [PathBuf::from("/third")]);
    files.write("a-3.toml", "this is not TOML");
    assert_eq!(files.hosts(), [PathBuf::from("/third")]);
}

fn judges(dir: &str) -> String {
    format!("[plugins.\"io.containerd.image-verifier.v1.bindir\"]\nbin_dir = {dir:?}\n")
}

#[test]
fn every_directory_of_verifiers_is_known_also_of_drop_ins() {
    let files = Files::new();
    files.write("config.toml", &format!("imports = [\"more/*.toml\"]\n{}", judges("/one")));
    files.write("more/a.toml", &judges("/two"));
    files.write("conf.d/a.toml", &judges("/three"));
    let places = |drop_ins| of_file(&files.load(drop_ins), VisibleFiles::whole()).verifiers.unwrap();
    assert_eq!(places(None), [VERIFIERS, "/one", "/two"].map(PathBuf::from));
    let drop_ins = files.path("conf.d/*.toml");
    assert_eq!(places(drop_ins.to_str()), [VERIFIERS, "/one", "/three", "/two"].map(PathBuf::from));
    for (version, since) in
        [("1.7.30", false), ("v2.1.5-k3s1", false), ("2.2.0", true), ("v3.0.0", true), ("unknown", true)]
    {
        assert_eq!(is_since(version, DROP_INS_SINCE), since, "{version}");
    }
}

/// Where verifiers are is known only if every file was read that containerd reads.
#[test]
fn settings_that_are_not_all_seen_name_no_verifiers() {
    for (main, complete) in [
        ("version = 3", true),
        ("imports = [\"none/*.toml\"]", true),
        ("imports = [\"gone.toml\"]", false),
        ("imports = [\"broken.toml\"]", false),
        ("imports = [\"large.toml\"]", false),
        ("imports = [\"*/a.toml\"]", false),
        ("imports = [\"a*b*.toml\"]", false),
        ("imports = [\"[ab]*.toml\"]", false),
        ("this is not TOML", false),
    ] {
        let files = Files::new();
        files.write("config.toml", main);
        files.write("broken.toml", "[");
        files.write("large.toml", &format!("version = 3\n{}", "#\n".repeat(1 << 20)));
        let told = of_file(&files.load(None), VisibleFiles::whole());
        assert_eq!(told.verifiers.is_some(), complete, "{main}");
    }
    // Read, but not what containerd reads.
    let files = Files::new();
    files.write("config.toml", "imports = [\"/etc/more/*.toml\"]");
    let sight = |seen: &str| VisibleFiles::through(&[&files.path(seen)]);
    assert!(!load(&files.path("config.toml"), None, &sight("elsewhere")).complete);
    assert!(!load(&files.path("config.toml"), None, &sight("")).complete, "the import is not seen");
    files.write("config.toml", "imports = [\"more/*.toml\"]");
    assert!(load(&files.path("config.toml"), None, &sight("")).complete);
    // This process has the same mounts as itself and was started with no such file.
    let own = i32::try_from(std::process::id()).unwrap();
    assert_eq!(of_process(None, None).verifiers, None, "nobody knows which file it reads");
    assert_eq!(of_process(Some(own), None).sight, VisibleFiles::of(Some(own)));
}

#[test]
fn a_command_line_names_the_file() {
    for (line, file) in [
        ("containerd", None),
        ("containerd --config /a", Some("/a")),
        ("containerd -c /a --root /b", Some("/a")),
        ("containerd --root /b --config=/a", Some("/a")),
        ("containerd -l debug config", None),
        ("containerd --config", None),
    ] {
        assert_eq!(named(line.split(' ')), file, "{line}");
    }
}

#[tokio::test]
async fn who_serves_a_socket_is_seen() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("s");
    assert_eq!(serving(&socket).await, None);
    let _listener = tokio::net::UnixListener::bind(&socket).unwrap();
    assert_eq!(serving(&socket).await, Some(i32::try_from(std::process::id()).unwrap()));
}
