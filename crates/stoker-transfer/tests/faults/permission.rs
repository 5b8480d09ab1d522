//! Whether a registry gives an image to any of some logins, for a node that reads the image from somewhere else.

use stoker_testbed::registry::{Auth, Fault, On, digest};
use stoker_transfer::{Keyring, Logins, Permission, SecretKind, TransferErrorKind};

use super::auth::bearer;
use super::*;

/// Longer than any other login in a header, and shorter than [`LONG`].
const LONG_HEADER: usize = 4000;
const LONG: usize = 6000;

impl Bench {
    fn pinned(&self) -> Reference {
        format!("{}/team/app@{}", self.registry.host(), self.pushed.manifest).parse().unwrap()
    }

    /// These logins, in this order.
    fn logins(&self, users: &[(&str, &str)]) -> Logins {
        let mut ring = Keyring::new();
        for (user, password) in users {
            let text = format!(r#"{{"{}": {{"username": "{user}", "password": "{password}"}}}}"#, self.registry.host());
            ring.add(SecretKind::DockerCfg, text.as_bytes()).unwrap();
        }
        ring.logins(&self.image())
    }

    async fn permission(&self, logins: &Logins) -> Permission {
        let permission = self.client.permission(&self.pinned(), logins).await;
        let methods: Vec<String> = self.registry.requests("/manifests/").into_iter().map(|seen| seen.method).collect();
        assert!(methods.iter().all(|method| method == "HEAD"), "each GET may count as a pull: {methods:?}");
        permission
    }
}

fn said(permission: Permission) -> (&'static str, Option<TransferErrorKind>) {
    let (word, error) = match permission {
        Permission::Granted => ("granted", None),
        Permission::Refused(error) => ("refused", Some(error)),
        Permission::Undecided(error) => ("undecided", Some(error)),
        Permission::Unavailable(error) => ("unavailable", Some(error)),
    };
    error.iter().for_each(assert_clean);
    (word, error.map(|error| error.kind()))
}

#[tokio::test]
async fn an_answer_is_a_yes_whatever_it_says_of_the_manifest() {
    let other = digest(b"else");
    for fault in [
        None,
        Some(Fault::SayNothing),
        Some(Fault::SayDigest(String::new())),
        Some(Fault::SayDigest(other)),
        Some(Fault::Status(204, None)),
        Some(Fault::Longer { by: 5 << 20, declared: true }),
    ] {
        let bench = Bench::new().await;
        let case = format!("{fault:?}");
        fault.into_iter().for_each(|fault| bench.registry.fault(On::Heads, usize::MAX, fault));
        assert_eq!(said(bench.permission(&Logins::default()).await), ("granted", None), "{case}");
        assert_eq!(bench.registry.seen().len(), 1, "{case}");
    }
}

#[tokio::test]
async fn only_a_registry_that_does_not_work_is_unavailable() {
    use TransferErrorKind::{NotFound, RateLimited, Server, Unauthorized};
    for (status, expected, requests) in [
        (401, ("refused", Unauthorized), 1),
        (403, ("refused", Unauthorized), 1),
        (404, ("refused", NotFound), 1),
        (429, ("undecided", RateLimited), 1),
        (400, ("undecided", Server), 1),
        (405, ("undecided", Server), 1),
        (431, ("undecided", Server), 1),
        (501, ("undecided", Server), 1),
        (500, ("unavailable", Server), 3),
        (503, ("unavailable", Server), 3),
    ] {
        let bench = Bench::new().await;
        bench.registry.fault(On::Heads, usize::MAX, Fault::Status(status, None));
        let (word, kind) = said(bench.permission(&Logins::default()).await);
        assert_eq!((word, kind), (expected.0, Some(expected.1)), "{status}");
        assert_eq!(bench.registry.seen().len(), requests, "{status}: one that answers is asked once");
    }
    let (_nobody, host) = nobody();
    let image: Reference = format!("{host}/team/app@{}", digest(b"x")).parse().unwrap();
    let permission = Registry::new(settings()).unwrap().permission(&image, &Logins::default()).await;
    assert_eq!(said(permission), ("unavailable", Some(TransferErrorKind::Unreachable)));
}

#[tokio::test]
async fn what_a_registry_does_with_one_login_says_nothing_of_the_others() {
    let long = "x".repeat(LONG);
    let bad = [("eve", long.as_str()), ("bob", "wrong"), ("ada", "other")];
    let all = [&bad[..], &[("ada", "hunter2")]].concat();
    for auth in [Auth::Basic { login: "ada:hunter2".into() }, bearer(Some("ada:hunter2"), 1000)] {
        for fault in [Fault::Status(400, None), Fault::Status(429, None), Fault::Status(502, None), Fault::HangUp] {
            let bench = Bench::new().await;
            let case = format!("{auth:?} {fault:?}");
            bench.registry.protect(auth.clone());
            bench.registry.fault(On::Logins(LONG_HEADER), usize::MAX, fault.clone());
            bench.registry.fault(On::Tokens, 1, fault);
            let logins = bench.logins(&all);
            assert_eq!(said(bench.permission(&logins).await), ("granted", None), "{case}");
            assert_eq!(logins.current().map(|login| login.password.expose()), Some("hunter2"), "{case}");
            let before = bench.registry.seen().len();
            assert_eq!(said(bench.permission(&logins).await), ("granted", None), "{case}");
            assert_eq!(bench.registry.seen().len() - before, 1, "{case}: what worked is remembered");
        }
    }
}

#[tokio::test]
async fn a_login_that_is_never_answered_makes_no_registry_unavailable() {
    let bench = Bench::new().await;
    bench.registry.protect(Auth::Basic { login: "ada:hunter2".into() });
    bench.registry.fault(On::Logins(LONG_HEADER), usize::MAX, Fault::Hold);
    let long = "x".repeat(LONG);
    let logins = bench.logins(&[("eve", &long)]);
    let held = |times: usize| {
        let is_long = |seen: &&testbed::Seen| seen.authorization.as_ref().is_some_and(|login| login.len() > LONG);
        let registry = &bench.registry;
        async move { registry.wait_for(|seen| seen.iter().filter(is_long).count() == times).await }
    };
    let passes = async {
        held(1).await;
        pass(Duration::from_secs(2)).await;
        held(2).await;
        pass(Duration::from_secs(10)).await;
    };
    let (permission, ()) = tokio::join!(bench.permission(&logins), passes);
    assert_eq!(said(permission), ("undecided", Some(TransferErrorKind::Stalled)));
}

/// A mirror is no registry: that it refuses an image says nothing where the registry itself cannot be asked.
#[tokio::test]
async fn what_a_mirror_says_is_no_refusal_of_the_registry() {
    let mut mirror = Bench::new().await;
    mirror.registry.fault(On::Heads, usize::MAX, Fault::Status(404, None));
    let (_nobody, host) = nobody();
    let certs = mirror.dir.path().join("certs.d").join(&host);
    std::fs::create_dir_all(&certs).unwrap();
    std::fs::write(certs.join("hosts.toml"), format!("[host.\"http://{}\"]\n", mirror.registry.host())).unwrap();
    let hosts = vec![mirror.dir.path().join("certs.d")];
    mirror.set(Settings { hosts, ..settings() });
    let image: Reference = format!("{host}/team/app@{}", mirror.pushed.manifest).parse().unwrap();
    let permission = mirror.client.permission(&image, &Logins::default()).await;
    assert_eq!(said(permission), ("unavailable", Some(TransferErrorKind::Unreachable)));
    assert_eq!(mirror.registry.seen().len(), 3, "it was asked in each round");
}
