use super::*;

fn told(text: &str) -> Told {
    of_table(&text.parse().unwrap())
}

#[test]
fn containerd_1_tells_by_cri_and_2_does_not() {
    let one = r#"{"containerd": {"snapshotter": "native", "discardUnpackedLayers": true},
                  "registry": {"configPath": "/a:/b", "mirrors": null}, "rootDir": "/x"}"#;
    let expected = Told {
        snapshotter: Some("native".into()),
        discards: true,
        hosts: vec!["/a".into(), "/b".into()],
        verifiers: VERIFIERS.into(),
    };
    assert_eq!(of_one(one), Some(expected));
    assert_eq!(of_one(r#"{"containerd": {"defaultRuntimeName": "runc"}, "rootDir": "/x"}"#), None);
}

#[test]
fn a_file_of_the_new_or_the_old_form_is_understood() {
    let usual = told("version = 3");
    assert_eq!(usual.hosts, HOSTS.map(PathBuf::from));
    assert_eq!((usual.discards, usual.verifiers), (false, VERIFIERS.into()));
    let new = told(
        r#"
        [plugins."io.containerd.cri.v1.images"]
          discard_unpacked_layers = true
        [plugins."io.containerd.cri.v1.images".registry]
          config_path = "/certs"
        [plugins."io.containerd.image-verifier.v1.bindir"]
          bin_dir = "/judges"
        "#,
    );
    assert_eq!((new.discards, new.hosts, new.verifiers), (true, vec!["/certs".into()], "/judges".into()));
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

#[test]
fn imports_count_last_and_never_end() {
    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| fs::write(dir.path().join(name), text).unwrap();
    let set = |path: &str| format!("[plugins.\"io.containerd.cri.v1.images\".registry]\nconfig_path = {path:?}\n");
    write("config.toml", &format!("imports = [\"config.toml\", \"a-*.toml\", \"gone.toml\"]\n{}", set("/first")));
    write("a-1.toml", &set("/second"));
    write("a-2.toml", &format!("imports = [\"{}/config.toml\"]\n{}", dir.path().display(), set("/third")));
    write("b-3.toml", &set("/never"));
    assert_eq!(of_table(&load(&dir.path().join("config.toml"))).hosts, [PathBuf::from("/third")]);
    write("a-3.toml", "this is not TOML");
    assert_eq!(of_table(&load(&dir.path().join("config.toml"))).hosts, [PathBuf::from("/third")]);
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
