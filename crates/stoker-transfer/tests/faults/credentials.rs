//! Logins of pull secrets, against registries that want one.

use std::collections::HashSet;

use stoker_testbed::registry::{Auth, Fault, On};
use stoker_transfer::{Keyring, Platform, SecretKind, TransferErrorKind};

use super::auth::bearer;
use super::*;

fn ring(host: &str, users: &[&str]) -> Keyring {
    let mut ring = Keyring::new();
    for user in users {
        let (name, password) = user.split_once(':').unwrap();
        let file = format!(r#"{{"auths": {{"{host}": {{"username": "{name}", "password": "{password}"}}}}}}"#);
        ring.add(SecretKind::DockerConfigJson, file.as_bytes()).unwrap();
    }
    ring
}

/// A whole image with whatever login works.
async fn pull(bench: &Bench, ring: &Keyring) -> Result<(), Error> {
    let image = bench.image();
    let logins = ring.logins(&image);
    let root = bench.client.resolve_with(&image, &logins).await?;
    let found = bench.client.image_with(&image, root.digest(), &Platform::host(), &logins).await?;
    for blob in found.blobs() {
        let source = BlobSource::new(image.clone(), logins.current().cloned());
        bench.spool.blob(source, blob.clone()).complete().await?;
    }
    Ok(())
}

#[tokio::test]
async fn logins_are_tried_in_order_until_one_is_let_in() {
    for auth in [Auth::Basic { login: "ada:hunter2".into() }, bearer(Some("ada:hunter2"), 1000)] {
        let bench = Bench::new().await;
        bench.registry.protect(auth);
        let host = bench.registry.host();
        pull(&bench, &ring(&host, &["ada:wrong", "eve:other", "ada:hunter2"])).await.unwrap();
        let refused = bench.registry.seen().iter().filter(|seen| seen.status == 401).count();
        assert!(refused <= 6, "what worked is remembered: {refused} refusals");
        let blobs = bench.registry.requests("/blobs/");
        assert!(blobs.iter().all(|seen| seen.status == 200), "and used for the blobs at once: {blobs:?}");
    }
}

#[tokio::test]
async fn what_is_open_to_everybody_needs_no_login_that_works() {
    let bench = Bench::new().await;
    bench.registry.protect(Auth::Basic { login: "ada:hunter2".into() });
    let host = bench.registry.host();
    let error = pull(&bench, &ring(&host, &["ada:wrong"])).await.unwrap_err();
    assert_eq!(error.kind(), TransferErrorKind::Unauthorized);
    assert!(error.to_string().contains("refuses the login"), "the login's refusal, not nobody's: {error}");
    assert_clean(&error);

    let open = Bench::new().await;
    pull(&open, &ring(&open.registry.host(), &["ada:wrong"])).await.unwrap();
    assert!(open.registry.seen().iter().all(|seen| seen.authorization.is_none()), "nobody asked, nothing was sent");
}

#[tokio::test]
async fn a_login_is_never_sent_to_another_host() {
    let (ours, other) = (Bench::new().await, Bench::new().await);
    let ring = ring(&ours.registry.host(), &["ada:hunter2"]);
    for auth in [Auth::Basic { login: "ada:hunter2".into() }, bearer(Some("ada:hunter2"), 1000)] {
        other.registry.protect(auth);
        assert_eq!(pull(&other, &ring).await.unwrap_err().kind(), TransferErrorKind::Unauthorized);
    }
    assert!(other.registry.seen().iter().all(|seen| seen.authorization.is_none()), "{:?}", other.registry.seen());
}

#[tokio::test]
async fn a_registry_that_is_down_is_not_asked_with_every_login() {
    let bench = Bench::new().await;
    bench.registry.protect(Auth::Basic { login: "ada:hunter2".into() });
    bench.registry.fault(On::Heads, usize::MAX, Fault::Status(500, None));
    let host = bench.registry.host();
    let error = pull(&bench, &ring(&host, &["a:1", "b:2", "c:3"])).await.unwrap_err();
    assert_eq!(error.kind(), TransferErrorKind::Server);
    let seen = bench.registry.requests("/manifests/");
    let logins: HashSet<_> = seen.iter().filter_map(|seen| seen.authorization.clone()).collect();
    assert!(logins.len() <= 1, "only the first one: {logins:?}");
}
