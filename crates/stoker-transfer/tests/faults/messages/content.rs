//! Answers that came and cannot be used.

use serde_json::json;
use stoker_testbed::registry::{INDEX, MANIFEST, digest};

use super::*;

const OLD: &str = "application/vnd.docker.distribution.manifest.v1+prettyjws";

pub(super) async fn all(page: &mut Page) {
    page.part("Too large");
    let huge = || Bytes::from(vec![b' '; 5 << 20]);
    let case = Case::new(page).await;
    case.fault(On::Manifests, Fault::Serve(huge())).manifest("a manifest is too large").await;
    let case = Case::new(page).await.fault(On::Manifests, Fault::Serve(huge()));
    case.fault(On::Manifests, Fault::Longer { by: 0, declared: false }).manifest("a manifest does not end").await;
    let case = Case::new(page).await;
    let empty: Vec<Bytes> = vec![Bytes::new(); 501];
    let many = case.bench.registry.push("team/app", "many", &empty);
    case.document("an image has too many layers", &many.manifest).await;
    let case = Case::new(page).await;
    let entries: Vec<_> = std::iter::repeat_n((many.manifest.as_str(), 7, MANIFEST, "linux/amd64"), 1001).collect();
    let index = case.bench.registry.put_index("team/app", "wide", &entries);
    case.document("an index has too many entries", &index).await;
    let case = Case::new(page).await;
    let put = |tag: &str, (inner, size): (String, usize)| {
        let entry = json!({"mediaType": INDEX, "digest": inner, "size": size, "platform": {"os": "linux", "architecture": "amd64"}});
        let text = json!({"schemaVersion": 2, "mediaType": INDEX, "manifests": [entry]}).to_string();
        (case.bench.registry.put_manifest("team/app", Some(tag), INDEX, text.clone()), text.len())
    };
    let (deep, _) = put("three", put("two", put("one", (case.bench.pushed.manifest.clone(), 7))));
    case.document("indexes are nested too deep", &deep).await;

    page.part("Forms that are not pulled");
    let case = Case::new(page).await;
    let text = r#"{"schemaVersion":1,"name":"team/app","tag":"v1","fsLayers":[],"history":[]}"#;
    case.bench.registry.put_manifest("team/app", Some("v1"), OLD, text);
    case.tag("the tag is of schema 1").await;
    let case = Case::new(page).await;
    let long = format!("sha512:{}", "ab".repeat(64));
    let index = case.bench.registry.put_index("team/app", "long", &[(&long, 7, MANIFEST, "linux/amd64")]);
    case.document("an index names a sha512 digest", &index).await;
    let case = Case::new(page).await;
    let part = |digest: &str| json!({"mediaType": "x", "digest": digest, "size": 1});
    let text = json!({"schemaVersion": 2, "config": part(&case.bench.pushed.config), "layers": [part(&long)]});
    let manifest = case.bench.registry.put_manifest("team/app", None, MANIFEST, text.to_string());
    case.document("a layer has a sha512 digest", &manifest).await;
    let case = Case::new(page).await;
    let index =
        case.bench.registry.put_index("team/app", "far", &[(&case.bench.pushed.manifest, 7, MANIFEST, "plan9/mips")]);
    case.document("the image is for other platforms", &index).await;

    page.part("Wrong bytes");
    let case = Case::new(page).await;
    case.fault(On::Blobs, Fault::CorruptAt(7)).blob("a blob is corrupt").await;
    let case = Case::new(page).await;
    case.fault(On::Manifests, Fault::Serve("{}".into())).manifest("a manifest is corrupt").await;
    let case = Case::new(page).await;
    let image: Reference =
        format!("{}/team/app@{}", case.bench.registry.host(), case.bench.pushed.manifest).parse().unwrap();
    case.bench.registry.fault(On::Heads, usize::MAX, Fault::SayDigest(digest(b"else")));
    let error = case.bench.client.resolve(&image, None).await.unwrap_err();
    case.page.note("the registry has another manifest under this digest", &error);

    page.part("Answers that make no sense");
    for (what, text) in [
        ("a manifest is no JSON", "<html>login</html>"),
        ("a manifest has no version", "{}"),
        ("a manifest is index and image at once", r#"{"schemaVersion":2,"manifests":[],"layers":[]}"#),
        ("a manifest is of another type", r#"{"schemaVersion":2,"mediaType":"application/x","layers":[]}"#),
    ] {
        let case = Case::new(page).await;
        let digest = case.bench.registry.put_manifest("team/app", None, MANIFEST, text);
        case.document(what, &digest).await;
    }
    let case = Case::new(page).await;
    let index =
        case.bench.registry.put_index("team/app", "liar", &[(&case.bench.pushed.manifest, 7, MANIFEST, "linux/amd64")]);
    case.document("an index lies about a length", &index).await;
    let case = Case::new(page).await;
    case.fault(On::Blobs, Fault::WrongContentRange).blob("a range that was not asked for").await;
    let case = Case::new(page).await;
    case.fault(On::Blobs, Fault::Longer { by: 1, declared: true }).blob("a blob is too long").await;
    let case = Case::new(page).await;
    let case = case.fault(On::Manifests, Fault::Header("Content-Encoding", "br".into()));
    case.manifest("a manifest is compressed in an unknown way").await;
}
