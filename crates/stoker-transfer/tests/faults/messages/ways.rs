//! The way to a host: connections, certificates, proxies, silence.

use stoker_transfer::Proxy;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio_util::task::AbortOnDropHandle;

use super::super::tls::{Authority, serve};
use super::*;

/// A host that answers everything with this text.
async fn speaker(text: &'static str) -> (String, AbortOnDropHandle<()>) {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let host = listener.local_addr().unwrap().to_string();
    let task = tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut head = [0; 1024];
            let _ = stream.read(&mut head).await;
            let _ = stream.write_all(text.as_bytes()).await;
        }
    });
    (host, AbortOnDropHandle::new(task))
}

async fn resolve(page: &mut Page, what: &str, settings: Settings, image: &str) {
    let error = Registry::new(settings).unwrap().resolve(&image.parse().unwrap(), None).await.unwrap_err();
    page.note_image(what, &error);
}

pub(super) async fn all(page: &mut Page) {
    page.part("No way to the host");
    let (_nobody, host) = nobody();
    page.named(&host, "NOBODY");
    resolve(page, "nobody listens", settings(), &format!("{host}/team/app:v1")).await;
    let (silent, _task) = speaker("SSH-2.0-OpenSSH_9.2\r\n").await;
    page.named(&silent, "REGISTRY");
    resolve(page, "the port is not one of a registry", settings(), &format!("{silent}/team/app:v1")).await;
    let case = Case::new(page).await;
    case.fault(On::Blobs, Fault::CutAfter(0)).blob("the connection ends in the middle of a blob").await;
    let case = Case::new(page).await;
    case.fault(On::Manifests, Fault::CutAfter(0)).manifest("the connection ends in the middle of a manifest").await;
    let case = Case::new(page).await;
    let quiet = testbed::Registry::start().await.unwrap();
    case.page.named(&quiet.host(), "CDN");
    let case = case.fault(On::Blobs, Fault::Redirect(format!("http://{}", quiet.host())));
    quiet.put_blob(case.bench.layer.clone());
    case.silent_blob("a redirect target is silent", &quiet).await;

    page.part("Certificates");
    let (certificate, key) = Authority::new().sign("localhost");
    let (address, _server) = serve(Bytes::new(), vec![certificate.der().clone()], &key, None).await;
    page.named(address.trim_start_matches("https://"), "REGISTRY");
    let certs = sited(&address, "");
    let settings_of = |certs: &TempDir| Settings { hosts: vec![certs.path().to_owned()], ..settings() };
    resolve(page, "the certificate is of nobody we know", settings_of(&certs), "reg.test/team/app:v1").await;

    page.part("Proxies");
    let proxied = |address: &str| {
        let address = address.to_owned();
        let proxy = Proxy::from_env_like(move |name| (name == "HTTPS_PROXY").then(|| address.clone()));
        Settings { proxy, ..settings() }
    };
    resolve(page, "nobody listens at the proxy", proxied(&format!("http://{host}")), "reg.test/team/app:v1").await;
    let (refusing, _task) = speaker("HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n").await;
    page.named(&refusing, "PROXY");
    let login = proxied(&format!("http://eve:hunter2@{refusing}"));
    resolve(page, "the proxy refuses us", login, "reg.test/team/app:v1").await;
    resolve(page, "the variable is no proxy", proxied("ftp://hunter2"), "reg.test/team/app:v1").await;
}

/// A directory of hosts that knows one registry.
pub(super) fn sited(server: &str, more: &str) -> TempDir {
    let certs = TempDir::new().unwrap();
    std::fs::create_dir(certs.path().join("reg.test")).unwrap();
    std::fs::write(certs.path().join("reg.test/hosts.toml"), format!("server = '{server}'\n{more}")).unwrap();
    certs
}
