//! What holds for any bytes of a registry, a Secret or a hosts.toml. Each function takes the input of one fuzz target of `fuzz/`
//! and panics where a property is broken. They stand here because what they call is private. Nothing of Stoker calls them.

use std::path::Path;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Uri};
use oci_spec::image::ImageConfiguration;

use crate::credentials::{SecretKind, config};
use crate::hosts::file;
use crate::image::{self, Document, ParsedDocument, PlatformImage};
use crate::platform::Platform;
use crate::reference::{Address as _, Reference};
use crate::registry::challenge::{self, Challenge};
use crate::registry::{location, may_lead_to, said};
use crate::{Descriptor, Digest, MediaType};

/// A manifest, an index or a configuration: a document that is accepted is within the bounds, names each blob once, and is
/// read the same way whatever the server calls it, unless it says nothing of its own type.
pub fn manifest(bytes: &[u8]) {
    if let Ok(config) = serde_json::from_slice::<ImageConfiguration>(bytes) {
        let again = serde_json::to_vec(&config).map(|text| serde_json::from_slice::<ImageConfiguration>(&text).ok());
        assert_eq!(again.ok().flatten().as_ref(), Some(&config), "a configuration is written and read again");
    }
    for served_as in [None, Some(MediaType::ImageIndex), Some(MediaType::ImageManifest)] {
        let Ok((media_type, parsed)) = image::parse(bytes, served_as.as_ref()) else { continue };
        match parsed {
            ParsedDocument::Index(index) => {
                assert_eq!(image::shape(&media_type), Some(image::DocumentShape::Index));
                assert!(index.manifests().len() <= 1000, "an index has at most 1000 entries");
                for platform in ["linux/amd64/v3", "linux/arm64/v9", "linux/arm/v6", "windows/amd64"] {
                    let Ok(platform) = platform.parse::<Platform>() else { continue };
                    match image::choose(&index, &platform) {
                        Ok(entry) => assert!(image::shape(entry.media_type()).is_some(), "an entry is a document"),
                        Err(image::Bad::Platform { offered, .. }) => {
                            assert!(offered.chars().count() <= 300 && !offered.chars().any(char::is_control));
                        }
                        Err(other) => assert!(matches!(other, image::Bad::Algorithm(_)), "{other:?}"),
                    }
                }
            }
            ParsedDocument::Manifest(manifest) => {
                assert_eq!(image::shape(&media_type), Some(image::DocumentShape::Manifest));
                let Ok(digest) = Digest::try_from(format!("sha256:{}", "0".repeat(64))) else { continue };
                let descriptor = Descriptor::new(media_type, bytes.len() as u64, digest);
                let document = Document { descriptor, bytes: Bytes::copy_from_slice(bytes) };
                let Ok(image) = PlatformImage::new(vec![document], *manifest) else { continue };
                let mut digests: Vec<String> = image.blobs().map(|blob| blob.digest().to_string()).collect();
                let all = digests.len();
                digests.sort();
                digests.dedup();
                assert_eq!(digests.len(), all, "each blob is fetched once");
                assert!(all <= 501, "an image has at most 500 layers");
                // Digests become file names and paths of requests.
                for digest in digests {
                    let hex = digest.strip_prefix("sha256:").unwrap_or_default();
                    assert!(hex.len() == 64 && hex.bytes().all(|b| b.is_ascii_hexdigit()), "{digest}");
                }
                image.total_size();
            }
        }
    }
}

/// A `WWW-Authenticate` header: what was read, quoted again, is read the same.
pub fn challenge(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let found = challenge::parse(text);
    for one in &found {
        let Challenge::Bearer(bearer) = one else { continue };
        let quote = |text: &str| text.replace('\\', r"\\").replace('"', "\\\"");
        let field = |name: &str, value: &Option<String>| {
            value.as_ref().map(|value| format!(r#",{name}="{}""#, quote(value))).unwrap_or_default()
        };
        let (service, scope) = (field("service", &bearer.service), field("scope", &bearer.scope));
        let header = format!(r#"Bearer realm="{}"{service}{scope}"#, quote(&bearer.realm));
        assert_eq!(challenge::parse(&header), std::slice::from_ref(one), "{header}");
    }
    let mut headers = HeaderMap::new();
    if let Ok(value) = HeaderValue::from_bytes(bytes) {
        headers.insert(http::header::WWW_AUTHENTICATE, value);
        assert!(challenge::challenges(&headers).len() <= 8, "at most 8 challenges are tried");
    }
}

/// A `Location` header: the target is http or https, has a host and no user, stays the same when it is resolved again, and
/// leads no request from elsewhere to this machine.
pub fn location(bytes: &[u8]) {
    let Ok(value) = HeaderValue::from_bytes(bytes) else { return };
    for base in ["https://reg.example:5000/v2/a/blobs/x?y=1", "http://reg.example/v2/"] {
        let Ok(base) = base.parse::<Uri>() else { continue };
        let Some(target) = location::resolve(&base, &value) else { continue };
        let text = target.to_string();
        assert!(matches!(target.scheme_str(), Some("http" | "https")), "{text}");
        assert!(target.host().is_some_and(|host| !host.is_empty()), "{text}");
        assert!(!target.authority().is_some_and(|authority| authority.as_str().contains('@')), "{text}");
        if let Ok(again) = HeaderValue::from_str(&text) {
            let again = location::resolve(&base, &again);
            assert_eq!(again.map(|uri| uri.to_string()), Some(text.clone()), "a target is resolved once");
        }
        if may_lead_to(&base, &target) {
            let host = target.host().unwrap_or_default();
            let bare = host.trim_start_matches('[').trim_end_matches(']').trim_end_matches('.');
            let ip = bare.parse::<std::net::IpAddr>().map(|ip| ip.to_canonical());
            assert!(!ip.as_ref().is_ok_and(|ip| ip.is_loopback() || ip.is_unspecified()), "{host} is this machine");
            assert!(!bare.eq_ignore_ascii_case("localhost"), "{host} is this machine");
            let last = bare.rsplit('.').next().unwrap_or_default();
            let number = !last.is_empty() && last.bytes().all(|byte| byte.is_ascii_digit());
            assert!(ip.is_ok() || !number, "{host} may be this machine");
        }
    }
}

/// The body of an error: the explanation is a short line of printable characters without the secret.
pub fn explanation(bytes: &[u8]) {
    const SECRET: &str = "hunter2";
    if let Some(line) = said::explanation(bytes, &[SECRET]) {
        assert!(!line.is_empty() && line.chars().count() <= 301, "{line}");
        assert!(!line.contains(SECRET), "{line}");
        assert!(!line.chars().any(char::is_control), "{line:?}");
    }
}

/// A hosts.toml: an accepted address has no user in it and no way up in its path, and no value of a header is shown.
pub fn hosts(bytes: &[u8]) {
    const SECRET: &str = "hunter2";
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let Ok(found) = file::parse(Path::new("hosts.toml"), text) else { return };
    assert!(found.hosts.len() <= 64, "a file has at most 64 hosts");
    for entry in found.hosts.iter().chain([&found.server]) {
        let values = entry.headers.values();
        assert!(!values.map(|value| format!("{value:?}")).any(|shown| shown.contains(SECRET)), "a header is shown");
        let Some(url) = &entry.url else { continue };
        assert!(matches!(url.scheme, "http" | "https"));
        assert!(!url.authority.is_empty() && !url.authority.contains(['@', '/', '?']), "{url:?}");
        assert!(!url.path.split('/').any(|part| part == "." || part == ".."), "{url:?}");
    }
}

/// The content of a pull secret: errors do not quote it, and a login is for no registry that its place does not name.
pub fn pull_secret(bytes: &[u8]) {
    const SECRET: &str = "hunter2";
    for kind in [SecretKind::DockerConfigJson, SecretKind::DockerCfg] {
        match config::read(kind, bytes) {
            Ok(logins) => {
                assert!(!logins.is_empty() && logins.len() <= 1000);
                for (pattern, login) in &logins {
                    assert!(!format!("{login:?}").contains(SECRET) || login.username.contains(SECRET));
                    for image in ["nginx", "reg.example:5000/team/app", "[::1]:5000/a", "localhost/a"] {
                        let Ok(image) = image.parse::<Reference>() else { continue };
                        let host = pattern.text().split('/').next().unwrap_or_default();
                        let exact = host.split(':').next() == image.registry().split(':').next();
                        assert!(!pattern.matches(&image) || exact || host.contains('*'), "{host} for {image}");
                    }
                }
            }
            Err(problem) => assert!(!format!("{problem} {problem:?}").contains(SECRET)),
        }
    }
}

/// The name of an image: printed and read again it is the same, and its parts are fit for paths and addresses.
pub fn reference(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let image = match text.parse::<Reference>() {
        Ok(image) => image,
        Err(problem) => {
            // Each character of the text takes at most ten in quotes.
            assert!(problem.to_string().chars().count() < 2300, "{problem}");
            return;
        }
    };
    assert_eq!(image.to_string().parse::<Reference>().as_ref(), Ok(&image), "{image}");
    assert!(image.tag().is_some() || image.digest().is_some(), "{image}");
    assert!(!image.repository().split('/').any(|part| matches!(part, "" | "." | "..")), "{image}");
    assert!(!image.registry().contains(['/', '@']) && !image.registry().starts_with('.'), "{image}");
    assert_eq!(image.pinned().is_some(), image.digest().is_some(), "{image}");
    let address =
        format!("https://{}/v2/{}/manifests/{}", image.authority(), image.repository(), image.manifest_name());
    let uri = address.parse::<Uri>();
    assert!(
        uri.as_ref().is_ok_and(|uri| uri.authority().is_some_and(|a| a.as_str() == image.authority())),
        "{address}"
    );
}
