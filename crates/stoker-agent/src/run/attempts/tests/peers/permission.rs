//! Whether the registry lets a node have what it is about to read from others.

use serde_json::json;
use stoker_testbed::registry::Auth;

use super::*;

impl Scene {
    /// The order has these logins, in this order.
    fn log_in(&mut self, logins: &[(&str, &str)]) {
        let key = NodeKey::generate();
        let seal = |(user, password): &(&str, &str)| {
            let text = json!({ self.registry.host(): { "username": user, "password": password } }).to_string();
            let entry = LoginEntry::read(SecretKind::DockerCfg, text.as_bytes()).unwrap().remove(0);
            let login = SealedLogin { key: key.public().name(), sealed: entry.seal(&key.public()).unwrap() };
            (LoginId::new(user), login)
        };
        let (_, sealed) = watch::channel(Arc::new(logins.iter().map(seal).collect()));
        self.node.attempts.tools.logins = LoginOpener::new(key, sealed);
        self.logins = logins.iter().map(|(user, _)| LoginId::new(user)).collect();
    }

    /// Requests to the registry since the image was ordered, of whatever kind.
    fn asked(&self) -> usize {
        self.registry.seen().len() - self.before
    }

    /// Waits until the first attempt has failed, and gives the reason, and whether there will be another attempt.
    async fn fails(&mut self) -> (Reason, bool) {
        let until = self.node.until(|task| !matches!(task.state, TaskState::Running { .. }));
        tokio::time::timeout(Duration::from_secs(60), until).await.unwrap();
        let Task { report, state } = self.node.task();
        assert_eq!((report.bytes.peers, self.requests()), (0, Vec::new()), "{report:?}");
        (report.reason.unwrap(), matches!(state, TaskState::Resting { .. }))
    }
}

/// Whoever may make jobs could name somebody else's private image by its digest.
#[tokio::test(flavor = "multi_thread")]
async fn an_image_that_the_registry_refuses_does_not_come_from_another_node() {
    let mut scene = Scene::new().await;
    let a = scene.whole("a").await;
    scene.registry.protect(Auth::Basic { login: "ada:lovelace".into() });
    scene.tell(false, &[&a]);
    assert_eq!(scene.fails().await, (Reason::Unauthorized, false));
}

/// Whoever may make jobs brings logins, and may so have a registry, or a proxy before it, say anything but that the image is refused.
#[tokio::test(flavor = "multi_thread")]
async fn an_image_that_the_registry_does_not_grant_does_not_come_from_another_node() {
    let long = "x".repeat(6000);
    // So long that no other login is.
    let to_long = || On::Logins(4000);
    for (on, fault, logins, reason) in [
        (On::Heads, Fault::Status(429, None), vec![("bob", "wrong")], Reason::RateLimited),
        (to_long(), Fault::Status(400, None), vec![("eve", long.as_str())], Reason::RegistryError),
        (to_long(), Fault::Status(503, None), vec![("eve", &long)], Reason::RegistryError),
        (to_long(), Fault::HangUp, vec![("eve", &long), ("bob", "wrong")], Reason::Unreachable),
        (On::Heads, Fault::Status(405, None), vec![], Reason::RegistryError),
        (On::Heads, Fault::Status(501, None), vec![], Reason::RegistryError),
    ] {
        let mut scene = Scene::new().await;
        let a = scene.whole("a").await;
        scene.registry.protect(Auth::Basic { login: "ada:lovelace".into() });
        let case = format!("{fault:?} {reason}");
        scene.registry.fault(on, usize::MAX, fault);
        scene.log_in(&logins);
        scene.tell(false, &[&a]);
        assert_eq!(scene.fails().await, (reason, true), "{case}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_login_for_which_the_registry_takes_long_opens_no_image() {
    let mut scene = Scene::new().await;
    let a = scene.whole("a").await;
    scene.registry.protect(Auth::Basic { login: "ada:lovelace".into() });
    scene.registry.fault(On::Logins(4000), usize::MAX, Fault::Hold);
    scene.log_in(&[("bob", "wrong"), ("eve", &"x".repeat(6000))]);
    scene.tell(false, &[&a]);
    scene
        .registry
        .wait_for(|seen| seen.iter().any(|seen| seen.authorization.as_ref().is_some_and(|login| login.len() > 4000)))
        .await;
    // Longer than it is waited for a registry that is silent.
    tokio::time::sleep(Duration::from_millis(2500)).await;
    scene.registry.let_go();
    assert_eq!(scene.fails().await, (Reason::Unauthorized, false));
}

/// A login of another namespace, which the registry does not understand, keeps no order from being done.
#[tokio::test(flavor = "multi_thread")]
async fn one_good_login_is_enough_whatever_is_said_to_the_others() {
    let mut scene = Scene::new().await;
    let a = scene.whole("a").await;
    scene.registry.protect(Auth::Basic { login: "ada:lovelace".into() });
    scene.registry.fault(On::Logins(4000), usize::MAX, Fault::Status(400, None));
    scene.log_in(&[("eve", &"x".repeat(6000)), ("ada", "lovelace")]);
    scene.tell(false, &[&a]);
    scene.succeeds().await;
    assert_eq!(scene.requests(), []);
}

/// At some registries each GET of a manifest counts as a pull.
#[tokio::test(flavor = "multi_thread")]
async fn a_registry_that_says_nothing_of_the_manifest_is_not_asked_for_the_manifest() {
    for fault in [Fault::SayDigest(String::new()), Fault::SayNothing] {
        let mut scene = Scene::new().await;
        let a = scene.whole("a").await;
        scene.registry.fault(On::Heads, usize::MAX, fault);
        scene.tell(false, &[&a]);
        scene.succeeds().await;
        assert_eq!(scene.requests(), []);
    }
}

/// Of several nodes behind one thin line only one may reach the registry.
#[tokio::test(flavor = "multi_thread")]
async fn a_registry_that_cannot_be_reached_refuses_nothing() {
    let mut scene = Scene::new().await;
    let a = scene.whole("a").await;
    scene.registry.fault(On::Heads, usize::MAX, Fault::Status(503, None));
    scene.tell(false, &[&a]);
    scene.succeeds().await;
}

/// The registry would refuse, and its mirrors, of which there are none, are all that may be asked.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_may_ask_mirrors_only_asks_the_registry_nothing() {
    let mut scene = Scene::new().await;
    let a = scene.whole("a").await;
    scene.registry.protect(Auth::Basic { login: "ada:lovelace".into() });
    scene.allowed = PullSource::MirrorsOnly;
    scene.tell(false, &[&a]);
    let report = scene.succeeds().await;
    assert_eq!((report.from, scene.asked()), (Some(Origin::Peer("a".into())), 0));

    let mut scene = Scene::new().await;
    scene.allowed = PullSource::MirrorsOnly;
    scene.tell(true, &[]);
    assert_eq!(scene.fails().await, (Reason::NotFound, false));
    assert_eq!(scene.asked(), 0);
}

/// A plugin may ask the registry for its login.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_may_ask_mirrors_only_runs_no_credential_provider() {
    let dir = tempfile::tempdir().unwrap();
    let (config, ran) = (dir.path().join("config.yaml"), dir.path().join("ran"));
    std::os::unix::fs::symlink("/bin/sh", dir.path().join("plugin")).unwrap();
    for (allowed, runs) in [(PullSource::MirrorsOnly, false), (PullSource::Any, true)] {
        let mut scene = Scene::new().await;
        let plugin = json!({
            "name": "plugin", "matchImages": [scene.registry.host()], "defaultCacheDuration": "1h",
            "apiVersion": "credentialprovider.kubelet.k8s.io/v1", "args": ["-c", format!("touch {ran:?}")],
        });
        let providers = json!({
            "apiVersion": "kubelet.config.k8s.io/v1", "kind": "CredentialProviderConfig", "providers": [plugin],
        });
        std::fs::write(&config, providers.to_string()).unwrap();
        scene.node.attempts.tools.providers = Providers::load(&config, dir.path()).unwrap();
        scene.allowed = allowed;
        scene.tell(true, &[]);
        scene.until(Report::ended).await;
        assert_eq!(ran.exists(), runs, "{allowed:?}");
    }
}

/// What two namespaces allow together: the one needs the registry's answer, the other one needs none.
#[tokio::test(flavor = "multi_thread")]
async fn an_order_for_a_job_that_needs_no_permission_asks_for_none() {
    for allowed in [PullSource::AnyOrMirrors, PullSource::PeersOrMirrors] {
        let mut scene = Scene::new().await;
        let a = scene.whole("a").await;
        scene.registry.protect(Auth::Basic { login: "ada:lovelace".into() });
        scene.allowed = allowed;
        scene.tell(false, &[&a]);
        scene.succeeds().await;
        assert_eq!(scene.asked(), 0, "{allowed:?}");
    }
    let mut scene = Scene::new().await;
    scene.allowed = PullSource::PeersOrMirrors;
    scene.tell(true, &[]);
    assert_eq!(scene.fails().await, (Reason::NotFound, false));
    assert_eq!(scene.asked(), 0, "only mirrors may give the image");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_registry_that_an_order_may_no_longer_ask_hears_no_more_of_it() {
    let mut scene = Scene::new().await;
    let path = scene.layer_digest().to_string();
    scene.registry.fault(On::Path(path), 1, Fault::StallAfter(HALF));
    scene.tell(true, &[]);
    scene.has(HALF).await;
    scene.before = scene.registry.seen().len();
    scene.allowed = PullSource::MirrorsOnly;
    scene.tell(true, &[]);
    assert_eq!(scene.fails().await, (Reason::NotFound, false));
    assert_eq!((scene.asked(), scene.node.task().report.attempt), (0, 1));
}

/// Another job lets the order ask the registry, and must not fail for want of mirrors.
#[tokio::test(flavor = "multi_thread")]
async fn an_order_that_may_ask_the_registry_from_now_on_does_so() {
    let mut scene = Scene::new().await;
    let a = scene.whole("a").await;
    a.shelf.0.lock().unwrap().clear();
    scene.allowed = PullSource::MirrorsOnly;
    scene.tell(false, &[&a]);
    scene.until(|report| report.reason == Some(Reason::NoSource)).await;
    assert_eq!(scene.asked(), 0);
    scene.allowed = PullSource::AnyOrMirrors;
    scene.tell(true, &[]);
    scene.succeeds().await;
}
