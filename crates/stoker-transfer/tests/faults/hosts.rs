//! A node's hosts.toml: mirrors, certificates and headers, on real sockets.

use stoker_testbed::registry::{Auth, Fault, On};
use stoker_transfer::{Platform, PlatformImage, TransferErrorKind};

use super::auth::bearer;
use super::*;

/// A registry under a name that only its hosts.toml explains, and a mirror with the same image.
struct Site {
    bench: Bench,
    mirror: testbed::Registry,
    certs: TempDir,
}

impl Site {
    async fn new() -> Self {
        let mut bench = Bench::new().await;
        let mirror = testbed::Registry::start().await.unwrap();
        mirror.push("team/app", "v1", std::slice::from_ref(&bench.layer));
        let certs = TempDir::new().unwrap();
        bench.set(Settings { hosts: vec![certs.path().to_owned()], ..settings() });
        let site = Self { bench, mirror, certs };
        site.write("");
        site
    }

    /// The mirror first, then the registry, with more lines for the mirror.
    fn write(&self, more: &str) {
        let (server, mirror) = (self.bench.registry.host(), self.mirror.host());
        self.write_file(&format!("server = 'http://{server}'\n[host.'http://{mirror}']\n{more}\n"));
    }

    fn write_file(&self, text: &str) {
        let dir = self.certs.path().join("reg.test");
        std::fs::create_dir_all(&dir).unwrap();
        std::fs::write(dir.join("hosts.toml"), text).unwrap();
    }

    fn image(&self) -> Reference {
        "reg.test/team/app:v1".parse().unwrap()
    }

    async fn find(&self, login: Option<&Login>) -> Result<PlatformImage, Error> {
        let (client, image) = (&self.bench.client, self.image());
        let root = client.resolve(&image, login).await?;
        client.image(&image, root.digest(), &Platform::host(), login).await
    }

    async fn pull(&self, login: Option<Login>) -> Result<PlatformImage, Error> {
        let (image, found) = (self.image(), self.find(login.as_ref()).await?);
        for blob in found.blobs() {
            let source = BlobSource::new(image.clone(), login.clone());
            self.bench.spool.blob(source, blob.clone()).complete().await?;
        }
        Ok(found)
    }

    /// Requests at the mirror and at the registry.
    fn asked(&self) -> (usize, usize) {
        (self.mirror.seen().len(), self.bench.registry.seen().len())
    }
}

#[tokio::test]
async fn a_mirror_serves_all_of_it_and_knows_for_whom() {
    let site = Site::new().await;
    site.pull(None).await.unwrap();
    assert_eq!(site.asked(), (4, 0), "HEAD, manifest, configuration, layer");
    assert!(site.mirror.seen().iter().all(|seen| seen.query == "ns=reg.test"), "{:?}", site.mirror.seen());
}

/// Tags, documents, permission and blobs.
#[tokio::test]
async fn a_client_of_mirrors_asks_the_registry_nothing() {
    let mut site = Site::new().await;
    let fetch = async |site: &Site, layer: &Descriptor| {
        let source = BlobSource::new(site.image(), None).from_mirrors(true);
        site.bench.spool.blob(source, layer.clone()).complete().await
    };
    site.bench.client = site.bench.client.mirrors_only(true);
    let found = site.find(None).await.unwrap();
    let layer = found.blobs().last().unwrap().clone();
    site.mirror.fault(On::Blobs, 1, Fault::Status(404, None));
    let error = fetch(&site, &layer).await.unwrap_err();
    assert_eq!(error.kind(), TransferErrorKind::NotFound, "{error}");
    fetch(&site, &layer).await.unwrap();
    site.mirror.fault(On::Manifests, usize::MAX, Fault::Status(503, None));
    site.find(None).await.unwrap_err();
    assert_eq!(site.asked().1, 0, "{:?}", site.bench.registry.seen());
    site.write_file(&format!("server = 'http://{}'", site.bench.registry.host()));
    let error = site.find(None).await.unwrap_err().to_string();
    assert!(error.contains("only mirrors may be asked") && site.asked().1 == 0, "{error}");
}

/// As mirrors do that pass on all that the registry answers.
#[tokio::test]
async fn a_mirror_leads_no_client_of_mirrors_to_the_registry() {
    let mut site = Site::new().await;
    site.bench.client = site.bench.client.mirrors_only(true);
    let found = site.find(None).await.unwrap();
    let registry = format!("http://{}", site.bench.registry.host());
    // On the way through another host, too.
    let between = testbed::Registry::start().await.unwrap();
    between.push("team/app", "v1", std::slice::from_ref(&site.bench.layer));
    between.fault(On::Path("/v2/".into()), usize::MAX, Fault::Redirect(registry.clone()));
    for to in
        [registry.clone(), registry.replace("127.0.0.1", "[::ffff:127.0.0.1]"), format!("http://{}", between.host())]
    {
        // Each question once.
        site.mirror.fault(On::Path("/v2/".into()), 3, Fault::Redirect(to.clone()));
        let (client, image) = (&site.bench.client, site.image());
        let tag = client.resolve(&image, None).await.unwrap_err();
        let manifest = client.image(&image, found.root.digest(), &Platform::host(), None).await.unwrap_err();
        let source = BlobSource::new(image.clone(), None).from_mirrors(true);
        let blob = site.bench.spool.blob(source, found.config.clone()).complete().await.unwrap_err();
        for error in [tag, manifest, blob] {
            assert!(error.to_string().contains("only mirrors may be asked"), "{to}: {error}");
        }
    }
    for realm in [registry.as_str(), "https://tokens.invalid"] {
        for login in [None, Some(login("hunter2"))] {
            let realm = Some(format!("{realm}/token"));
            site.mirror.protect(Auth::Bearer { login: Some("ada:hunter2".into()), uses: 100, realm, expires_in: 300 });
            let error = site.find(login.as_ref()).await.unwrap_err();
            assert!(error.to_string().contains("a token server on another host"), "{error}");
            assert_clean(&error);
        }
    }
    site.mirror.protect(bearer(Some("ada:hunter2"), 100));
    site.find(Some(&login("hunter2"))).await.unwrap();
    assert_eq!(site.asked().1, 0, "{:?}", site.bench.registry.seen());
}

/// A mirror may keep its blobs in a storage of its own.
#[tokio::test]
async fn a_mirror_may_redirect_to_hosts_that_are_not_the_registry() {
    let site = Site::new().await;
    let storage = testbed::Registry::start().await.unwrap();
    storage.push("team/app", "v1", std::slice::from_ref(&site.bench.layer));
    site.mirror.fault(On::Blobs, usize::MAX, Fault::Redirect(format!("http://{}", storage.host())));
    let source = BlobSource::new(site.image(), None).from_mirrors(true);
    site.bench.spool.blob(source, site.bench.descriptor()).complete().await.unwrap();
    assert_eq!((site.asked().1, storage.seen().len()), (0, 1));
}

#[tokio::test]
async fn what_came_from_a_mirror_is_counted_as_such() {
    let site = Site::new().await;
    let (registry, mirror) = (site.bench.registry.host(), site.mirror.host());
    let dir = site.certs.path().join(&registry);
    std::fs::create_dir(&dir).unwrap();
    std::fs::write(dir.join("hosts.toml"), format!("[host.'http://{mirror}']\n")).unwrap();
    let came = async |blob: &Descriptor| {
        let fetch = site.bench.spool.blob(BlobSource::new(site.bench.image(), None), blob.clone());
        let progress = fetch.progress();
        fetch.complete().await.unwrap();
        (progress.upstream(), progress.mirrored())
    };
    let image = site.find(None).await.unwrap();
    let [config, layer] = image.blobs().collect::<Vec<_>>()[..] else { panic!("not two blobs") };
    assert_eq!(came(config).await, (config.size(), config.size()));
    site.mirror.fault(On::Blobs, usize::MAX, Fault::Status(500, None));
    assert_eq!(came(layer).await, (layer.size(), 0), "of the registry itself");
}

#[tokio::test]
async fn a_mirror_that_may_not_resolve_gives_what_digests_name() {
    let site = Site::new().await;
    site.write("capabilities = ['pull']");
    site.pull(None).await.unwrap();
    assert_eq!(site.asked(), (3, 1));
    assert_eq!(site.bench.registry.seen()[0].method, "HEAD");
}

#[tokio::test]
async fn whatever_a_mirror_answers_the_registry_is_asked_next() {
    for status in [401, 403, 404, 429, 500, 503] {
        let site = Site::new().await;
        site.mirror.fault(On::Path("/v2/".into()), usize::MAX, Fault::Status(status, None));
        site.pull(None).await.unwrap();
        assert_eq!(site.asked(), (4, 4), "{status}: each asked once, and nothing waited for");
    }
    // Nobody there at all.
    let site = Site::new().await;
    let (_nobody, gone) = nobody();
    site.write_file(&format!("server = 'http://{}'\n[host.'http://{gone}']\n", site.bench.registry.host()));
    site.pull(None).await.unwrap();
    assert_eq!(site.asked(), (0, 4));
}

#[tokio::test]
async fn a_mirror_that_hangs_is_left_after_the_stall_timeout() {
    let mut site = Site::new().await;
    let hosts = vec![site.certs.path().to_owned()];
    // A short one, so where the machine stands still the registry may seem to hang too, and is asked again.
    let retry = Retry { attempts: 100, ..settings().retry };
    site.bench.set(Settings { stall_timeout: Duration::from_secs(1), retry, hosts, ..settings() });
    site.mirror.fault(On::Blobs, usize::MAX, Fault::StallAfter(0));
    let found = site.pull(None).await.unwrap();
    for blob in found.blobs() {
        assert!(site.bench.registry.body_bytes(blob.digest().as_ref()) >= blob.size());
    }
}

#[tokio::test]
async fn a_corrupt_copy_of_a_mirror_is_fetched_from_the_next() {
    let site = Site::new().await;
    site.mirror.fault(On::Blobs, usize::MAX, Fault::CorruptAt(1000));
    site.mirror.fault(On::Manifests, usize::MAX, Fault::Serve("{}".into()));
    site.pull(None).await.unwrap();
    assert_eq!(site.mirror.requests("/blobs/").len(), 2, "a mirror gets no second chance");
    assert_eq!(site.bench.registry.body_bytes(&site.bench.pushed.layers[0]), SIZE as u64);
}

#[tokio::test]
async fn what_a_mirror_sent_before_it_died_is_not_fetched_again() {
    let site = Site::new().await;
    // It gives a part, and then nothing any more.
    let layer = &site.bench.pushed.layers[0];
    site.mirror.fault(On::Path(layer.clone()), usize::MAX, Fault::CutAfter(0));
    site.mirror.fault(On::Path(layer.clone()), 1, Fault::CutAfter(1_000_000));
    site.pull(None).await.unwrap();
    assert_eq!(site.mirror.body_bytes(layer), 1_000_000);
    let rest = site.bench.registry.requests(layer);
    assert_eq!(rest.len(), 1);
    assert_eq!((rest[0].range.as_deref(), rest[0].body_bytes), (Some("bytes=1000000-"), SIZE as u64 - 1_000_000));
}

#[tokio::test]
async fn a_mirror_gets_the_login_only_when_it_asks_and_no_token_of_another() {
    let site = Site::new().await;
    site.bench.registry.protect(bearer(Some("ada:hunter2"), 1000));
    site.mirror.fault(On::Path("/v2/".into()), usize::MAX, Fault::Status(404, None));
    site.pull(Some(login("hunter2"))).await.unwrap();
    assert!(site.mirror.seen().iter().all(|seen| seen.authorization.is_none()), "it did not ask");

    let site = Site::new().await;
    site.mirror.protect(Auth::Basic { login: "ada:hunter2".into() });
    site.pull(Some(login("hunter2"))).await.unwrap();
    assert_eq!(site.mirror.seen().iter().filter(|seen| seen.status == 401).count(), 1);
    assert_eq!(site.bench.registry.seen().len(), 0);
}

#[tokio::test]
async fn headers_go_to_their_host_and_nowhere_else() {
    let site = Site::new().await;
    let (server, mirror) = (site.bench.registry.host(), site.mirror.host());
    site.write_file(&format!(
        "server = 'http://{server}'\n[host.'http://{mirror}'.header]\nX-Key = ['hunter2', 'b']\nUser-Agent = 'edge'"
    ));
    let elsewhere = testbed::Registry::start().await.unwrap();
    elsewhere.push("team/app", "v1", std::slice::from_ref(&site.bench.layer));
    site.mirror.fault(On::Heads, 1, Fault::Status(500, None));
    site.mirror.fault(On::Blobs, usize::MAX, Fault::Redirect(format!("http://{}", elsewhere.host())));
    site.pull(None).await.unwrap();
    let has = |registry: &testbed::Registry, name: &str| -> Vec<usize> {
        registry.seen().iter().map(|seen| seen.headers.iter().filter(|(known, _)| known == name).count()).collect()
    };
    assert_eq!(has(&site.mirror, "x-key"), [2, 2, 2, 2]);
    assert_eq!(has(&site.mirror, "user-agent"), [1, 1, 1, 1]);
    assert_eq!((has(&site.bench.registry, "x-key"), has(&elsewhere, "x-key")), (vec![0], vec![0, 0]));
}

#[tokio::test]
async fn a_file_that_changes_is_read_again_and_a_broken_one_stops_its_registry_only() {
    let site = Site::new().await;
    site.pull(None).await.unwrap();
    site.write_file("[host.'http://hunter2@nowhere']");
    let error = site.pull(None).await.unwrap_err();
    assert!(error.to_string().contains("reg.test/hosts.toml"), "{error}");
    assert!(!error.is_retryable());
    assert_clean(&error);
    site.bench.client.resolve(&site.bench.image(), None).await.unwrap();
    site.write_file(&format!("server = 'http://{}'", site.bench.registry.host()));
    let before = site.mirror.seen().len();
    site.pull(None).await.unwrap();
    assert_eq!(site.mirror.seen().len(), before);
}

#[tokio::test]
async fn when_all_fail_the_error_is_the_registrys_and_names_the_mirror() {
    let site = Site::new().await;
    site.mirror.fault(On::Path("/v2/".into()), usize::MAX, Fault::Status(503, None));
    let image: Reference = "reg.test/team/other:v1".parse().unwrap();
    let error = site.bench.client.resolve(&image, None).await.unwrap_err();
    assert_eq!(error.kind(), TransferErrorKind::NotFound);
    let (server, mirror) = (site.bench.registry.host(), site.mirror.host());
    assert!(error.to_string().contains(&format!("reg.test at {server} (after {mirror} answered 503)")), "{error}");
}
