//! Errors of the hosts that a registry names, redirect targets and token servers, and the explanations in error answers.

use stoker_testbed::registry::{Auth, Fault, On};
use stoker_transfer::TransferErrorKind;

use super::auth::bearer;
use super::*;

/// A registry whose blobs are at another host.
async fn redirected() -> (Bench, testbed::Registry) {
    let bench = Bench::new().await;
    let cdn = testbed::Registry::start().await.unwrap();
    cdn.put_blob(bench.layer.clone());
    bench.registry.fault(On::Blobs, usize::MAX, Fault::Redirect(format!("http://{}", cdn.host())));
    (bench, cdn)
}

/// A registry whose tokens come from another host, and what errors call that host.
async fn with_token_server() -> (Bench, testbed::Registry, String) {
    let bench = Bench::new().await;
    let server = testbed::Registry::start().await.unwrap();
    server.protect(bearer(None, 1000));
    let realm = Some(format!("http://{}/token", server.host()));
    bench.registry.protect(Auth::Bearer { login: None, uses: 1000, realm, expires_in: 300 });
    let named = format!("{} (the token server of {})", server.host(), bench.registry.host());
    (bench, server, named)
}

fn errors(text: &str) -> String {
    format!(r#"{{"errors":[{{"code":"DENIED","message":"{text}"}}]}}"#)
}

#[tokio::test]
async fn a_redirect_target_that_fails_is_named() {
    let (bench, cdn) = redirected().await;
    cdn.fault(On::Blobs, 3, Fault::Explain(503, errors("slow down")));
    let error = bench.fetch().await.unwrap_err();
    assert_eq!((error.kind(), error.is_retryable()), (TransferErrorKind::Server, true));
    let (host, text) = (cdn.host(), error.to_string());
    let says = format!("{host} (to which {} redirects) answered 503", bench.registry.host());
    assert!(text.starts_with(&says) && text.contains("DENIED: slow down") && text.contains("logs of "), "{text}");
    assert_clean(&error);

    cdn.fault(On::Blobs, 3, Fault::CutAfter(0));
    let error = bench.fetch().await.unwrap_err();
    assert_eq!(error.kind(), TransferErrorKind::Unreachable);
    assert!(error.to_string().contains(&format!("from {host} (to which ")), "{error}");

    drop(cdn);
    let error = bench.fetch().await.unwrap_err();
    assert_eq!(error.kind(), TransferErrorKind::Unreachable);
    assert!(error.to_string().contains(&format!("from {host} (to which ")), "{error}");
    assert_clean(&error);
}

#[tokio::test]
async fn a_token_server_that_fails_is_named() {
    for (body, kind, status, said) in [
        (errors("no account"), TransferErrorKind::Unauthorized, 401, "DENIED: no account"),
        (r#"{"details":"incorrect password"}"#.to_owned(), TransferErrorKind::Unauthorized, 401, "incorrect password"),
        (
            r#"{"error":"x","error_description":"blocked"}"#.to_owned(),
            TransferErrorKind::Unauthorized,
            403,
            "x: blocked",
        ),
        (errors("database is down"), TransferErrorKind::Server, 500, "database is down"),
        (errors("too many"), TransferErrorKind::RateLimited, 429, "too many"),
    ] {
        let (bench, server, named) = with_token_server().await;
        server.fault(On::Tokens, usize::MAX, Fault::Explain(status, body));
        let error = bench.client.resolve(&bench.image(), Some(&login("hunter2"))).await.unwrap_err();
        assert_eq!(error.kind(), kind, "{error}");
        assert!(error.to_string().contains(&named) && error.to_string().contains(said), "{error}");
    }
    let (bench, server, named) = with_token_server().await;
    drop(server);
    let error = bench.client.resolve(&bench.image(), None).await.unwrap_err();
    assert_eq!(error.kind(), TransferErrorKind::Unreachable);
    assert!(error.to_string().contains(&named), "{error}");
}

#[tokio::test]
async fn what_a_registry_says_is_shown_for_tags_manifests_and_blobs() {
    let platform = "linux/amd64".parse().unwrap();
    for (status, kind) in [
        (403, TransferErrorKind::Unauthorized),
        (404, TransferErrorKind::NotFound),
        (429, TransferErrorKind::RateLimited),
        (500, TransferErrorKind::Server),
    ] {
        let bench = Bench::new().await;
        let digest = digest_of(&bench.pushed.manifest);
        let said = format!("because of {status}");
        bench.registry.fault(On::Path("/v2/".into()), usize::MAX, Fault::Explain(status, errors(&said)));
        let tag = bench.client.resolve(&bench.image(), None).await.unwrap_err();
        let manifest = bench.client.image(&bench.image(), &digest, &platform, None).await.unwrap_err();
        let blob = bench.fetch().await.unwrap_err();
        assert_eq!((tag.kind(), manifest.kind(), blob.kind()), (kind, kind, kind));
        for error in [manifest, blob] {
            assert!(error.to_string().contains(&said), "{error}");
        }
        // A registry that wants fewer requests is not asked again only to explain itself.
        assert_eq!(tag.to_string().contains(&said), status != 429, "{tag}");
    }
}

#[tokio::test]
async fn a_tag_that_only_a_head_does_not_find_is_found() {
    let bench = Bench::new().await;
    bench.registry.fault(On::Heads, usize::MAX, Fault::Status(404, None));
    let root = bench.client.resolve(&bench.image(), None).await.unwrap();
    assert_eq!(root.digest().to_string(), bench.pushed.manifest);
}

#[tokio::test]
async fn an_explanation_does_not_repeat_what_is_secret_nor_break_the_line() {
    let bench = Bench::new().await;
    bench.registry.protect(Auth::Basic { login: "ada:hunter2".into() });
    let echo = r"you sent ada:hunter2 as Basic YWRhOmh1bnRlcjI=\n\u001b[31m to /b?X-Signature=signed-secret";
    bench.registry.fault(On::Path("/v2/".into()), 1, Fault::Status(401, None));
    bench.registry.fault(On::Blobs, usize::MAX, Fault::Explain(403, errors(&echo.repeat(20))));
    bench.client.resolve(&bench.image(), Some(&login("hunter2"))).await.unwrap_err();
    bench.client.resolve(&bench.image(), Some(&login("hunter2"))).await.unwrap();
    let error = bench.fetch_as(Some(login("hunter2"))).await.unwrap_err();
    let text = error.to_string();
    assert!(text.contains("you sent ada:*** as Basic ***"), "{text}");
    assert!(!text.contains("YWRhOmh1bnRlcjI=") && !text.contains(char::is_control), "{text}");
    assert!(text.len() < 900, "{text}");
    assert_clean(&error);
}

#[tokio::test]
async fn a_signed_address_that_is_refused_is_asked_for_once_more() {
    for status in [400, 401, 403] {
        let (bench, cdn) = redirected().await;
        cdn.fault(On::Blobs, 1, Fault::Status(status, None));
        assert_eq!(bench.fetch().await.unwrap(), bench.layer);
        assert_eq!((bench.registry.requests("/blobs/").len(), cdn.seen().len()), (2, 2), "{status}");
    }
}

#[tokio::test]
async fn a_signed_address_that_stays_refused_is_not_about_our_login() {
    let (bench, cdn) = redirected().await;
    cdn.fault(
        On::Blobs,
        usize::MAX,
        Fault::Explain(403, "<Code>AccessDenied</Code><Message>Request has expired</Message>".into()),
    );
    let error = bench.fetch().await.unwrap_err();
    assert_eq!((error.kind(), error.is_retryable()), (TransferErrorKind::Server, true), "the order may be tried again");
    assert_eq!((bench.registry.requests("/blobs/").len(), cdn.seen().len()), (2, 2), "this attempt asked twice");
    let text = error.to_string();
    assert!(text.contains(&cdn.host()) && text.contains("403") && text.contains("Request has expired"), "{text}");
    assert!(!text.contains("pull secret"), "{text}");
}

#[tokio::test]
async fn a_redirect_target_cannot_ask_for_our_password() {
    let (bench, cdn) = redirected().await;
    let thief = testbed::Registry::start().await.unwrap();
    cdn.fault(On::Blobs, usize::MAX, Fault::Status(401, None));
    for challenge in [format!("Bearer realm=\"http://{}/token\"", thief.host()), "Basic realm=\"x\"".to_owned()] {
        cdn.fault(On::Blobs, 2, Fault::Header("WWW-Authenticate", challenge));
        let error = bench.fetch_as(Some(login("hunter2"))).await.unwrap_err();
        assert!(thief.seen().is_empty(), "{:?}", thief.seen());
        assert_eq!(error.kind(), TransferErrorKind::Server, "{error}");
    }
    let told = bench.registry.seen().into_iter().chain(cdn.seen());
    assert!(told.filter_map(|seen| seen.authorization).next().is_none(), "the registry did not ask for it");
}
