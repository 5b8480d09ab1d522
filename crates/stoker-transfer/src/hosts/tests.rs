//! What containerd's documentation and its source say, as tables.

use tempfile::TempDir;

use super::*;

fn image(text: &str) -> Reference {
    text.parse().unwrap()
}

/// A `certs.d` with these files.
fn certs(files: &[(&str, &str)]) -> TempDir {
    let dir = TempDir::new().unwrap();
    for (name, text) in files {
        let path = dir.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }
    dir
}

/// The addresses for an image, each with what it may do.
fn asked(dir: &TempDir, text: &str) -> Result<Vec<String>, Error> {
    let found = look(dir.path(), &image(text))?.map(|(_, found)| found.hosts).unwrap_or_default();
    let can = |host: &Host| match (host.can.resolve, host.can.pull) {
        (true, true) => "",
        (true, false) => " resolve",
        (false, true) => " pull",
        (false, false) => " nothing",
    };
    Ok(found.iter().map(|host| format!("{}{}", host.address("r", "x"), can(host))).collect())
}

#[test]
fn hosts_come_in_the_order_of_the_file_and_the_registry_last() {
    let dir = certs(&[(
        "reg.io/hosts.toml",
        r#"
        server = "https://real.io"
        [host."http://z.local:5000"]
        capabilities = ["pull", "Resolve"]
        [host."https://b.io/some/path/"]
        capabilities = ["pull"]
        [host."a.io/v2"]
        capabilities = ["push"]
        [host."https://proxy.io/reg/x"]
        override_path = true
        capabilities = ["resolve", "push"]
        [host."https://plain.io"]
        override_path = true
        "#,
    )]);
    let expected = [
        "http://z.local:5000/v2/r/x?ns=reg.io",
        "https://b.io/some/path/v2/r/x?ns=reg.io pull",
        "https://a.io/v2/r/x?ns=reg.io nothing",
        "https://proxy.io/reg/x/r/x?ns=reg.io resolve",
        "https://plain.io/r/x?ns=reg.io",
        "https://real.io/v2/r/x?ns=reg.io",
    ];
    assert_eq!(asked(&dir, "reg.io/r").unwrap(), expected);
}

#[test]
fn a_port_that_speaks_plain_http_is_not_asked_for_tls_as_well() {
    let plain = "http://10.0.0.1:5000/v2/r/x";
    let tls = "https://10.0.0.1:5000/v2/r/x";
    for (file, expected) in [
        ("[host.'http://10.0.0.1:5000']", &[plain][..]),
        ("server = 'https://10.0.0.1:5000'\n[host.'http://10.0.0.1:5000']", &[plain, tls]),
        ("[host.'http://10.0.0.1:5001']", &["http://10.0.0.1:5001/v2/r/x?ns=10.0.0.1:5000", tls]),
    ] {
        let dir = certs(&[("10.0.0.1:5000/hosts.toml", file)]);
        let asked = asked(&dir, "10.0.0.1:5000/r").unwrap();
        assert_eq!(asked.iter().map(|host| host.replace("%3A", ":")).collect::<Vec<_>>(), expected, "{file}");
    }
    // Without a port these are two ports, of which both may answer.
    let dir = certs(&[("reg.io/hosts.toml", "[host.'http://reg.io']")]);
    assert_eq!(asked(&dir, "reg.io/r").unwrap(), ["http://reg.io/v2/r/x", "https://reg.io/v2/r/x"]);
}

#[test]
fn the_registry_itself_is_asked_where_no_server_is_named() {
    for (registry, server, expected) in [
        ("reg.io", "", "https://reg.io/v2/r/x"),
        ("reg.io:5000", "server = 'https://reg.io:5000'", "https://reg.io:5000/v2/r/x"),
        ("10.0.0.1:5000", "server = 'http://10.0.0.1:5000'", "http://10.0.0.1:5000/v2/r/x"),
        ("10.0.0.1:5000", "", "https://10.0.0.1:5000/v2/r/x"),
        ("127.0.0.1:5000", "", "http://127.0.0.1:5000/v2/r/x"),
        ("127.0.0.1:5000", "skip_verify = true", "https://127.0.0.1:5000/v2/r/x"),
        ("docker.io", "", "https://registry-1.docker.io/v2/r/x"),
        ("docker.io", "server = 'https://docker.io'", "https://registry-1.docker.io/v2/r/x"),
        ("docker.io", "server = 'https://mirror.io'", "https://mirror.io/v2/r/x?ns=docker.io"),
    ] {
        let dir = certs(&[(&format!("{registry}/hosts.toml"), &format!("{server}\n# a comment"))]);
        assert_eq!(asked(&dir, &format!("{registry}/r")).unwrap(), [expected], "{registry} {server}");
    }
}

#[test]
fn the_directory_that_fits_best_is_taken() {
    let mirror = |name: &str| format!("[host.'http://{name}']");
    let dir = certs(&[
        ("reg.io_5000_/hosts.toml", &mirror("spelled")),
        ("reg.io:5000/hosts.toml", &mirror("not-this")),
        ("reg.io:5001/hosts.toml", &mirror("colon")),
        ("reg.io/hosts.toml", &mirror("bare")),
        ("_default/hosts.toml", &mirror("default")),
    ]);
    for (text, name) in [
        ("reg.io:5000/r", "spelled"),
        ("reg.io:5001/r", "colon"),
        ("reg.io/r", "bare"),
        ("reg.io:5002/r", "default"),
        ("nginx", "default"),
    ] {
        let first = asked(&dir, text).unwrap().remove(0);
        assert!(first.starts_with(&format!("http://{name}/v2/r/x?ns=")), "{text}: {first}");
    }
    let without = certs(&[("other.io/hosts.toml", "")]);
    assert!(asked(&without, "reg.io/r").unwrap().is_empty(), "nothing is said of it");
    assert!(look(&without.path().join("missing"), &image("reg.io/r")).unwrap().is_none());
}

#[test]
fn certificates_lie_beside_the_file_or_anywhere() {
    let dir = certs(&[
        ("other/far.pem", "far"),
        (
            "reg.io/hosts.toml",
            r#"
            ca = "own.pem"
            client = [["c.pem", "k.pem"]]
            [host."https://a.io"]
            ca = ["a.pem", "own.pem"]
            client = "both.pem"
            [host."https://b.io"]
            client = ["both.pem", "c.pem"]
            skip_verify = true
            "#,
        ),
        ("reg.io/own.pem", "own"),
        ("reg.io/a.pem", "a"),
        ("reg.io/c.pem", "c"),
        ("reg.io/k.pem", "k"),
        ("reg.io/both.pem", "both"),
    ]);
    let hosts = look(dir.path(), &image("reg.io/r")).unwrap().unwrap().1.hosts;
    let text = |pem: &Pem| String::from_utf8(pem.bytes.clone()).unwrap();
    let all = |trust: &Trust| {
        let ca: Vec<String> = trust.ca.iter().map(text).collect();
        let clients: Vec<String> = trust.clients.iter().map(|(c, k)| format!("{}+{}", text(c), text(k))).collect();
        format!("{} {} {}", ca.join(","), clients.join(","), trust.skip_verify)
    };
    let found: Vec<String> = hosts.iter().map(|host| all(&host.trust)).collect();
    assert_eq!(found, ["a,own both+both false", " both+both,c+c true", "own c+k false"]);
    let far = dir.path().join("other/far.pem");
    std::fs::write(dir.path().join("reg.io/hosts.toml"), format!("ca = {far:?}")).unwrap();
    let hosts = look(dir.path(), &image("reg.io/r")).unwrap().unwrap().1.hosts;
    assert_eq!(all(&hosts[0].trust), "far  false");
}

#[test]
fn certificates_without_a_file_are_dockers_way() {
    let dir = certs(&[
        ("127.0.0.1:5000/ca.crt", "ca"),
        ("127.0.0.1:5000/me.cert", "me"),
        ("127.0.0.1:5000/me.key", "key"),
        ("127.0.0.1:5000/README", "no certificate"),
    ]);
    let hosts = look(dir.path(), &image("127.0.0.1:5000/r")).unwrap().unwrap().1.hosts;
    let trust = &hosts[0].trust;
    assert_eq!((trust.ca.len(), trust.clients.len(), hosts[0].scheme), (1, 1, "https"));
    assert_eq!(trust.clients[0].1.bytes, b"key");
    std::fs::remove_file(dir.path().join("127.0.0.1:5000/me.key")).unwrap();
    let error = look(dir.path(), &image("127.0.0.1:5000/r")).unwrap_err();
    assert!(error.to_string().contains("me.key"), "{error}");
}

#[test]
fn headers_are_texts_or_lists_and_never_shown() {
    let dir = certs(&[(
        "reg.io/hosts.toml",
        "[host.'https://a.io'.header]\nX-Token = 'hunter2'\nX-Two = ['hunter2', 'b']\nHost = 'x'",
    )]);
    let hosts = look(dir.path(), &image("reg.io/r")).unwrap().unwrap().1.hosts;
    assert_eq!(hosts[0].headers.get_all("x-two").iter().count(), 2);
    assert_eq!((hosts[0].headers.len(), hosts[1].headers.len()), (3, 0));
    assert!(!format!("{hosts:?}").contains("hunter2"));
}

#[test]
fn what_is_wrong_is_named_with_its_file_and_field() {
    for (text, named) in [
        ("server = ", "line 1"),
        ("\n\n[host.'https://a.io'\n", "line 3"),
        ("server = 7", "server"),
        ("server = 'ftp://a.io'", "server"),
        ("server = 'https://u:hunter2@a.io'", "server"),
        ("host = 'x'", "host"),
        ("[host]\n'https://a.io' = 3", "\"https://a.io\""),
        ("[host.'https://u:hunter2@a.io']", "host 1"),
        ("[host.'https://']", "name of host"),
        ("[host.'https://a.io/../b']", "name of host"),
        ("[host.'https://a.io']\ncapabilities = 'pull'", "capabilities of host \"https://a.io\""),
        ("[host.'https://a.io']\ncapabilities = ['fly']", "\"fly\""),
        ("skip_verify = 'yes'", "skip_verify"),
        ("override_path = 1", "override_path"),
        ("ca = 1", "ca"),
        ("ca = 'missing.pem'", "missing.pem"),
        ("client = [['a', 'b', 'c']]", "client"),
        ("client = [1]", "client"),
        ("header = 'hunter2'", "header"),
        ("[header]\nX-A = 1", "header \"X-A\""),
        ("[header]\n'a b' = 'hunter2'", "\"a b\""),
        ("[header]\nX-A = \"hunter2\\n\"", "\"X-A\""),
    ] {
        let dir = certs(&[("reg.io/hosts.toml", text)]);
        let error = asked(&dir, "reg.io/r").unwrap_err().to_string();
        assert!(error.contains(named) && error.contains("reg.io/hosts.toml"), "{text:?}: {error}");
        assert!(!error.contains("hunter2"), "{error}");
        assert!(asked(&dir, "other.io/r").unwrap().is_empty(), "other registries do not care");
    }
    let long = certs(&[("reg.io/hosts.toml", &"#".repeat(1024 * 1024 + 1))]);
    assert!(asked(&long, "reg.io/r").unwrap_err().to_string().contains("1 MiB"));
}

#[tokio::test]
async fn nobody_to_ask_is_said() {
    let dir = certs(&[("reg.io/hosts.toml", "server = 'https://reg.io'\ncapabilities = ['pull']")]);
    let hosts = Hosts::new(vec![dir.path().to_owned()]);
    assert_eq!(hosts.of(&image("reg.io/r"), HostNeed::Pull).await.unwrap().len(), 1);
    let error = hosts.of(&image("reg.io/r"), HostNeed::Resolve).await.unwrap_err();
    assert!(error.to_string().contains("resolve tags of reg.io"), "{error}");
}

/// Whatever names the registry has: that of the image, the one behind it, the one that hosts.toml gives for it.
#[tokio::test]
async fn mirrors_are_all_but_the_registry_itself() {
    let dir = certs(&[
        (
            "reg.io/hosts.toml",
            "server = 'https://other.io'\n[host.'https://one.io']\n[host.'https://reg.io']\n[host.'https://two.io']\n\
             [host.'https://reg.io:443']\n[host.'http://reg.io.']\n[host.'https://OTHER.io/v2']",
        ),
        (
            "docker.io/hosts.toml",
            "[host.'https://one.io']\n[host.'https://registry-1.docker.io']\n[host.'https://Registry-1.Docker.io']\n\
             [host.'https://index.docker.io']\n[host.'https://docker.io']",
        ),
        ("none.io/hosts.toml", "server = 'https://behind.io'"),
        ("pull.io/hosts.toml", "[host.'https://one.io']\ncapabilities = ['pull']"),
    ]);
    let hosts = Hosts::new(vec![dir.path().to_owned()]);
    let mirrors = async |name: &str, need| {
        let mirrors = hosts.mirrors_of(&image(name), need).await;
        mirrors.map(|hosts| hosts.into_iter().map(|host| host.authority).collect::<Vec<_>>())
    };
    assert_eq!(mirrors("reg.io/r", HostNeed::Pull).await.unwrap(), ["one.io", "two.io"]);
    assert_eq!(mirrors("docker.io/library/r", HostNeed::Pull).await.unwrap(), ["one.io"]);
    assert_eq!(mirrors("pull.io/r", HostNeed::Pull).await.unwrap(), ["one.io"]);
    for (name, need, said) in [
        ("none.io/r", HostNeed::Pull, "give images of none.io"),
        ("unknown.io/r", HostNeed::Pull, "give images of unknown.io"),
        ("pull.io/r", HostNeed::Resolve, "resolve tags of pull.io"),
    ] {
        let error = mirrors(name, need).await.unwrap_err().to_string();
        assert!(error.contains(said), "{error}");
    }
}

#[tokio::test]
async fn the_first_directory_that_knows_a_registry_counts() {
    let first = certs(&[("reg.io/hosts.toml", "[host.'https://one.io']")]);
    let second = certs(&[("reg.io/hosts.toml", "[host.'https://two.io']"), ("_default/hosts.toml", "server = ''")]);
    let hosts = Hosts::new(vec!["/nonexistent/certs.d".into(), first.path().into(), second.path().into()]);
    let asked = async |name: &str| {
        let all = hosts.of(&image(name), HostNeed::Pull).await.unwrap();
        all.into_iter().map(|host| host.authority).collect::<Vec<_>>()
    };
    assert_eq!(asked("reg.io/r").await, ["one.io", "reg.io"]);
    assert_eq!(asked("other.io/r").await, ["other.io"]);
    std::fs::remove_dir_all(first.path()).unwrap();
    assert_eq!(asked("reg.io/r").await, ["two.io", "reg.io"]);
}
