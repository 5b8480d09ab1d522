//! Who we are, to whom, and to nobody else.

use stoker_testbed::registry::{Auth, Fault, On};
use stoker_transfer::{Platform, TransferErrorKind};

use super::*;

pub(crate) fn bearer(login: Option<&str>, uses: usize) -> Auth {
    Auth::Bearer { login: login.map(Into::into), uses, realm: None, expires_in: 300 }
}

#[tokio::test]
async fn a_401_that_stays_is_unauthorized() {
    let bench = Bench::new().await;
    bench.registry.protect(Auth::Refuse);
    let error = bench.fetch_as(Some(login("hunter2"))).await.unwrap_err();
    assert_eq!((error.kind(), error.is_retryable()), (TransferErrorKind::Unauthorized, false));
    assert_clean(&error);
    assert_eq!(bench.registry.requests("/blobs/").len(), 2, "once without, once with the login");

    let error = bench.client.resolve(&bench.image(), None).await.unwrap_err();
    assert_eq!(error.kind(), TransferErrorKind::Unauthorized);
    assert!(error.to_string().contains("there is none"), "{error}");
}

#[tokio::test]
async fn basic_logins_work_and_are_remembered() {
    let bench = Bench::new().await;
    bench.registry.protect(Auth::Basic { login: "ada:hunter2".into() });
    let login = Some(login("hunter2"));
    bench.client.resolve(&bench.image(), login.as_ref()).await.unwrap();
    assert_eq!(bench.fetch_as(login).await.unwrap(), bench.layer);
    assert_eq!(bench.registry.requests("/blobs/").len(), 1, "the second question knew what to say");
    assert_eq!(bench.fetch_as(Some(super::login("wrong"))).await.unwrap(), bench.layer, "joins what is there");
    bench.spool.release(&digest_of(&bench.pushed.layers[0])).await.unwrap();
    assert_eq!(bench.fetch_as(Some(super::login("wrong"))).await.unwrap_err().kind(), TransferErrorKind::Unauthorized);
}

#[tokio::test]
async fn one_token_serves_a_whole_image() {
    let bench = Bench::new().await;
    bench.registry.protect(bearer(Some("ada:hunter2"), 1000));
    let login = Some(login("hunter2"));
    let image = bench.image();
    let root = bench.client.resolve(&image, login.as_ref()).await.unwrap();
    let image = bench.client.image(&image, root.digest(), &Platform::host(), login.as_ref()).await.unwrap();
    for blob in image.blobs() {
        bench.spool.blob(BlobSource::new(bench.image(), login.clone()), blob.clone()).complete().await.unwrap();
    }
    let tokens = bench.registry.requests("/token");
    assert_eq!(tokens.len(), 1);
    assert_eq!(tokens[0].query, "service=testbed&scope=repository:team/app:pull");
    assert!(tokens[0].authorization.as_ref().unwrap().starts_with("Basic "));
    let others = bench.registry.requests("/v2/");
    assert!(others.iter().all(|seen| !seen.authorization.as_deref().unwrap_or("").starts_with("Basic")));
}

#[tokio::test]
async fn a_token_that_expires_in_the_middle_is_renewed() {
    let bench = Bench::new().await;
    // Each token is good for one request, and the connection is cut twice: three tokens, no byte twice.
    bench.registry.protect(bearer(None, 1));
    bench.registry.fault(On::Path("/blobs/".into()), 5, Fault::CutAfter(1_000_000));
    assert_eq!(bench.fetch().await.unwrap(), bench.layer);
    let given: Vec<_> = bench.registry.requests("/blobs/").into_iter().filter(|seen| seen.status < 400).collect();
    assert_eq!(given.iter().map(|seen| seen.body_bytes).sum::<u64>(), SIZE as u64, "no byte of the blob came twice");
    let tokens: Vec<_> = given.iter().filter_map(|seen| seen.authorization.as_deref()).collect();
    assert_eq!(tokens, ["Bearer token-1", "Bearer token-2", "Bearer token-3", "Bearer token-4"][..tokens.len()]);
    assert!(tokens.len() >= 3, "{tokens:?}");
}

#[tokio::test]
async fn a_401_that_asks_for_nothing_is_unauthorized() {
    let bench = Bench::new().await;
    bench.registry.fault(On::Blobs, 1, Fault::Status(401, None));
    let error = bench.fetch().await.unwrap_err();
    assert_eq!(error.kind(), TransferErrorKind::Unauthorized);
    assert_eq!(bench.registry.requests("/blobs/").len(), 1);
}

#[tokio::test]
async fn an_expired_token_is_not_even_tried() {
    let bench = Bench::new().await;
    let life = 3600;
    bench.registry.protect(Auth::Bearer { login: None, uses: 1000, realm: None, expires_in: life });
    bench.client.resolve(&bench.image(), None).await.unwrap();
    pass(Duration::from_secs(life)).await;
    bench.client.resolve(&bench.image(), None).await.unwrap();
    let heads: Vec<_> = bench.registry.requests("/manifests/");
    assert_eq!(heads.iter().map(|seen| seen.authorization.is_some()).collect::<Vec<_>>(), [false, true, false, true]);
    assert_eq!(bench.registry.requests("/token").len(), 2);
}

#[tokio::test]
async fn many_at_once_ask_for_one_token() {
    let bench = Bench::new().await;
    bench.registry.protect(bearer(None, 1000));
    let image = bench.image();
    let all = futures::future::join_all((0..8).map(|_| bench.client.resolve(&image, None))).await;
    assert!(all.iter().all(Result::is_ok));
    assert_eq!(bench.registry.requests("/token").len(), 1);
}

#[tokio::test]
async fn a_token_server_without_tls_elsewhere_gets_nothing() {
    let bench = Bench::new().await;
    let realm = Some("http://192.0.2.1/token".to_owned());
    bench.registry.protect(Auth::Bearer { login: None, uses: 1, realm, expires_in: 300 });
    let error = bench.client.resolve(&bench.image(), Some(&login("hunter2"))).await.unwrap_err();
    assert_eq!(error.kind(), TransferErrorKind::Unauthorized);
    assert!(error.to_string().contains("without TLS"), "{error}");
    assert_clean(&error);
}

#[tokio::test]
async fn a_token_that_is_too_long_is_refused() {
    let bench = Bench::new().await;
    bench.registry.protect(bearer(None, 1));
    bench.registry.fault(On::Tokens, 1, Fault::Longer { by: 65 * 1024, declared: false });
    let error = bench.client.resolve(&bench.image(), None).await.unwrap_err();
    assert_eq!(error.kind(), TransferErrorKind::TooLarge);
    assert!(error.to_string().contains("more than 64 KiB"), "{error}");
}

#[tokio::test]
async fn a_redirect_to_another_host_carries_no_credentials() {
    let bench = Bench::new().await;
    let cdn = testbed::Registry::start().await.unwrap();
    cdn.put_blob(bench.layer.clone());
    bench.registry.protect(Auth::Basic { login: "ada:hunter2".into() });
    bench.registry.fault(On::Blobs, usize::MAX, Fault::Redirect(format!("http://{}", cdn.host())));
    cdn.fault(On::Blobs, 1, Fault::CutAfter(1_000_000));
    assert_eq!(bench.fetch_as(Some(login("hunter2"))).await.unwrap(), bench.layer);
    let there = cdn.seen();
    assert_eq!(there.len(), 2, "the cut one was resumed, by a new redirect");
    assert!(there.iter().all(|seen| seen.authorization.is_none() && seen.query.contains("signed-secret")));
    assert_eq!(cdn.body_bytes("/blobs/"), SIZE as u64);
    assert_eq!(there[1].range.as_deref(), Some("bytes=1000000-"));
}

#[tokio::test]
async fn a_redirect_that_fails_shows_no_signature() {
    let bench = Bench::new().await;
    let cdn = testbed::Registry::start().await.unwrap();
    bench.registry.fault(On::Blobs, 1, Fault::Redirect(format!("http://{}", cdn.host())));
    let error = bench.fetch().await.unwrap_err();
    assert_eq!(error.kind(), TransferErrorKind::NotFound);
    assert_clean(&error);
    let (_nobody, gone) = nobody();
    bench.registry.fault(On::Blobs, usize::MAX, Fault::Redirect(format!("http://{gone}")));
    let error = bench.fetch().await.unwrap_err();
    assert_eq!(error.kind(), TransferErrorKind::Unreachable);
    assert_clean(&error);
}

#[tokio::test]
async fn a_relative_redirect_is_resolved_before_it_is_asked_for() {
    let bench = Bench::new().await;
    let layer = &bench.pushed.layers[0];
    bench.registry.fault(On::Blobs, 1, Fault::Location(format!("../../../store/./x/../blobs/{layer}?part=../1")));
    assert_eq!(bench.fetch().await.unwrap(), bench.layer);
    let seen = bench.registry.seen();
    assert_eq!((seen[1].path.as_str(), seen[1].query.as_str()), (&*format!("/v2/store/blobs/{layer}"), "part=../1"));
}

#[tokio::test]
async fn a_redirect_in_a_circle_ends() {
    let bench = Bench::new().await;
    bench.registry.fault(On::Blobs, usize::MAX, Fault::Redirect(format!("http://{}", bench.registry.host())));
    let error = bench.fetch().await.unwrap_err();
    assert_eq!(error.kind(), TransferErrorKind::InvalidContent);
    assert!(error.to_string().contains("more than 5 times"), "{error}");
    assert_eq!(bench.registry.requests("/blobs/").len(), 6);
}

#[tokio::test]
async fn a_redirect_to_plain_http_elsewhere_is_not_followed() {
    let bench = Bench::new().await;
    bench.registry.fault(On::Blobs, usize::MAX, Fault::Redirect("http://192.0.2.1".into()));
    let error = bench.fetch().await.unwrap_err();
    assert_eq!(error.kind(), TransferErrorKind::InvalidContent);
    assert!(error.to_string().contains("plain HTTP"), "{error}");
    assert_clean(&error);
}

#[tokio::test]
async fn tokens_that_are_used_up_by_others_are_renewed_and_a_refusal_is_believed() {
    let bench = Bench::new().await;
    let layers: Vec<Bytes> = (0..6).map(|seed| testbed::noise(20_000, seed)).collect();
    let pushed = bench.registry.push("team/many", "v1", &layers);
    let image: Reference = format!("{}/team/many:v1", bench.registry.host()).parse().unwrap();
    bench.registry.protect(bearer(Some("ada:hunter2"), 2));
    let ada = Some(login("hunter2"));
    bench.client.resolve(&image, ada.as_ref()).await.unwrap();
    let blobs: Vec<_> = pushed
        .layers
        .iter()
        .map(|layer| bench.spool.blob(BlobSource::new(image.clone(), ada.clone()), descriptor(layer, 20_000)))
        .collect();
    for blob in &blobs {
        blob.complete().await.unwrap();
    }
    let before = bench.registry.requests("/token").len();
    bench.registry.protect(bearer(Some("ada:hunter2"), 0));
    let error = bench.client.resolve(&image, None).await.unwrap_err();
    assert_eq!(error.kind(), TransferErrorKind::Unauthorized);
    assert_eq!(bench.registry.requests("/token").len() - before, 1, "nobody was never let in");

    bench.registry.protect(Auth::Basic { login: "ada:hunter2".into() });
    bench.client.resolve(&bench.image(), ada.as_ref()).await.unwrap();
    bench.registry.protect(Auth::Basic { login: "ada:rotated".into() });
    let before = bench.registry.requests("team/app").len();
    assert_eq!(
        bench.client.resolve(&bench.image(), ada.as_ref()).await.unwrap_err().kind(),
        TransferErrorKind::Unauthorized
    );
    assert_eq!(bench.registry.requests("team/app").len() - before, 1, "a password is not said twice");
}
