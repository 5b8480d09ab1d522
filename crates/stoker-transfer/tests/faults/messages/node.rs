//! What is wrong on this node: its settings, its disk, the names it was given.

use stoker_transfer::{Keyring, SecretKind, spool};

use super::ways::sited;
use super::*;

pub(super) async fn all(page: &mut Page) {
    page.part("Names");
    for name in ["Team/App", "https://reg.test/a", "a:v1:v2", "reg.test/a@sha512:00", "reg.test/a@sha256:00"] {
        let error = Error::from(name.parse::<Reference>().unwrap_err());
        page.note(name, &error);
    }

    page.part("The node's hosts.toml");
    for (what, more) in [
        ("it is not TOML", "[host"),
        ("a host is no address", "[host.'http://eve:hunter2@mirror.test']"),
        ("a capability is unknown", "[host.'https://mirror.test']\ncapabilities = ['fly']"),
        ("a CA is not there", "ca = 'gone.pem'"),
        ("a CA is none", "ca = 'hosts.toml'"),
        ("no host may be asked", "capabilities = ['push']"),
    ] {
        let certs = sited("https://reg.test", more);
        page.named(certs.path().to_str().unwrap(), "/etc/containerd/certs.d");
        let client = Registry::new(Settings { hosts: vec![certs.path().to_owned()], ..settings() }).unwrap();
        let error = client.resolve(&"reg.test/team/app:v1".parse().unwrap(), None).await.unwrap_err();
        page.note_image(what, &error);
    }

    page.part("The client's own settings");
    let broken = b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n".to_vec();
    page.note("the extra CA is none", &Registry::new(Settings { extra_ca: broken, ..settings() }).unwrap_err());

    page.part("Pull secrets (in a report: \"Secret NAMESPACE/NAME cannot be used: …; make it anew\")");
    for (what, text) in [
        ("not JSON", "hunter2".to_owned()),
        ("another form", r#"{"auths": "hunter2"}"#.to_owned()),
        ("no login", r#"{"auths": {"reg.test": {}}, "credHelpers": {"reg.test": "ecr"}}"#.to_owned()),
        ("an auth that is no base64", r#"{"auths": {"reg.test": {"auth": "hunter2!"}}}"#.to_owned()),
        ("a name that is no host", r#"{"auths": {"": {"username": "a", "password": "hunter2"}}}"#.to_owned()),
        ("too large", " ".repeat((1 << 20) + 1)),
    ] {
        let error = Keyring::new().add(SecretKind::DockerConfigJson, text.as_bytes()).unwrap_err();
        writeln!(page.text, "## {what}\n{error}\n").unwrap();
    }

    page.part("The spool's disk");
    let case = Case::new(page).await;
    let dir = case.bench.dir.path().to_owned();
    case.page.named(dir.to_str().unwrap(), "/var/lib/stoker/spool");
    std::fs::remove_dir(&dir).unwrap();
    std::fs::write(&dir, "").unwrap();
    case.blob("the directory is none any more").await;
    let what = "blob sha256:12 of reg.test/team/app:v1".to_owned();
    let path = || "/var/lib/stoker/spool/12.7".into();
    let fetch = |problem| Error::from(spool::Error::Fetch { what: what.clone(), problem: Box::new(problem) });
    page.note("the disk is full", &fetch(spool::Error::NoSpace { path: path() }));
    page.note("another process has the file", &fetch(spool::Error::Busy { path: path() }));
    page.note("the agent goes down", &fetch(spool::Error::Stopped));
    page.note("the blob was begun again", &spool::Error::Restarted { blob: what.clone() }.into());
}
