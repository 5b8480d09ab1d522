//! Answers that are errors: of registries, token servers, mirrors and redirect targets.

use stoker_testbed::registry::Auth;

use super::super::auth::bearer;
use super::ways::sited;
use super::*;

fn errors(code: &str, message: &str) -> String {
    serde_json::json!({"errors": [{"code": code, "message": message}]}).to_string()
}

pub(super) async fn all(page: &mut Page) {
    page.part("Answers of a registry");
    let everything = || On::Path("/v2/".into());
    for (what, status, code, message) in [
        ("the tag is not there", 404, "MANIFEST_UNKNOWN", "manifest unknown"),
        ("the registry denies access", 403, "DENIED", "requested access to the resource is denied"),
        ("the registry fails", 500, "UNKNOWN", "unknown error"),
        ("the registry does not understand", 400, "NAME_INVALID", "invalid repository name"),
    ] {
        let case = Case::new(page).await;
        case.fault(everything(), Fault::Explain(status, errors(code, message))).tag(what).await;
    }
    let case = Case::new(page).await;
    case.fault(everything(), Fault::Status(429, Some("3600".into()))).tag("the registry limits its rate").await;
    let case = Case::new(page).await;
    let case = case.fault(On::Manifests, Fault::Explain(404, errors("MANIFEST_UNKNOWN", "manifest unknown")));
    case.manifest("a manifest is not there").await;
    let case = Case::new(page).await;
    case.fault(On::Blobs, Fault::Explain(404, errors("BLOB_UNKNOWN", "blob unknown")))
        .blob("a blob is not there")
        .await;
    let case = Case::new(page).await;
    case.fault(On::Blobs, Fault::Explain(502, "upstream connect error".into())).blob("a proxy before it fails").await;

    page.part("Logins");
    let protected = |bench: &Bench, auth: Auth| bench.registry.protect(auth);
    let case = Case::new(page).await;
    protected(&case.bench, Auth::Basic { login: "ada:right".into() });
    case.tag("there is no login").await;
    let case = Case::new(page).await;
    protected(&case.bench, Auth::Basic { login: "ada:right".into() });
    case.tag_as("the login is wrong", Some(login("hunter2"))).await;
    let case = Case::new(page).await;
    case.fault(everything(), Fault::Status(401, None)).tag("no kind of login is offered").await;

    page.part("Token servers");
    for (what, status, body, who) in [
        ("the token server refuses the login", 401, r#"{"details":"incorrect username or password"}"#, Some("hunter2")),
        ("the token server wants a login", 401, r#"{"details":"authentication required"}"#, None),
        ("the token server denies access", 403, r#"{"error":"denied","error_description":"blocked"}"#, Some("hunter2")),
        ("the token server fails", 500, r#"{"errors":[{"code":"UNKNOWN","message":"database is down"}]}"#, None),
        ("the token server limits its rate", 429, r#"{"message":"slow down"}"#, None),
        ("the token server has no token", 200, "{}", None),
    ] {
        let mut case = Case::new(page).await;
        let tokens = case.other("TOKENS").await;
        tokens.protect(bearer(None, 1000));
        tokens.fault(On::Tokens, usize::MAX, Fault::Explain(status, body.into()));
        protected(&case.bench, behind(&format!("http://{}/token", tokens.host())));
        case.tag_as(what, who.map(login)).await;
    }
    let mut case = Case::new(page).await;
    let tokens = case.other("TOKENS").await;
    tokens.protect(bearer(None, 1000));
    tokens.fault(On::Tokens, usize::MAX, Fault::Longer { by: 65 * 1024, declared: false });
    protected(&case.bench, behind(&format!("http://{}/token", tokens.host())));
    case.tag("the token is too long").await;
    let (_nobody, host) = nobody();
    for (what, realm) in [
        ("nobody listens at the token server", format!("http://{host}/token")),
        ("the token server has no TLS", "http://192.0.2.1/token".to_owned()),
        ("the token server is no address", "not an address".to_owned()),
    ] {
        page.named(&host, "NOBODY");
        let case = Case::new(page).await;
        protected(&case.bench, behind(&realm));
        case.tag(what).await;
    }

    page.part("Redirect targets");
    let expired = "<Error><Code>AccessDenied</Code><Message>Request has expired</Message></Error>";
    let missing = "<Error><Code>NoSuchKey</Code><Message>The specified key does not exist.</Message></Error>";
    for (what, fault) in [
        ("a redirect target fails", Fault::Explain(503, errors("SLOW_DOWN", "reduce your request rate"))),
        ("a redirect target refuses the signed address", Fault::Explain(403, expired.into())),
        ("a redirect target does not have the blob", Fault::Explain(404, missing.into())),
        ("a redirect target cuts the connection", Fault::CutAfter(0)),
    ] {
        let mut case = Case::new(page).await;
        let cdn = case.other("CDN").await;
        cdn.put_blob(case.bench.layer.clone());
        cdn.fault(On::Blobs, usize::MAX, fault);
        case.fault(On::Blobs, Fault::Redirect(format!("http://{}", cdn.host()))).blob(what).await;
    }
    for (what, location) in [
        ("nobody listens at the redirect target", format!("http://{host}/b?X-Signature=signed-secret")),
        ("the redirect leads to plain HTTP", "http://192.0.2.1/b?X-Signature=signed-secret".to_owned()),
        ("the redirect is no address", "ftp://192.0.2.1/b?X-Signature=signed-secret".to_owned()),
        ("the redirect leads in a circle", "?X-Signature=signed-secret".to_owned()),
    ] {
        let case = Case::new(page).await;
        case.fault(On::Blobs, Fault::Location(location)).blob(what).await;
    }

    page.part("Mirrors");
    let mut case = Case::new(page).await;
    let mirror = case.other("MIRROR").await;
    mirror.fault(everything(), usize::MAX, Fault::Status(503, None));
    case.bench.registry.fault(everything(), usize::MAX, Fault::Explain(404, errors("NAME_UNKNOWN", "no such project")));
    let certs = sited(&format!("http://{}", case.bench.registry.host()), &format!("[host.'http://{}']", mirror.host()));
    case.bench.set(Settings { hosts: vec![certs.path().to_owned()], ..settings() });
    let image: Reference = "reg.test/team/app:v1".parse().unwrap();
    let error = case.bench.client.resolve(&image, None).await.unwrap_err();
    case.page.note("the mirror fails, and the registry does not have it", &error);
}

fn behind(realm: &str) -> Auth {
    Auth::Bearer { login: None, uses: 1000, realm: Some(realm.to_owned()), expires_in: 300 }
}
