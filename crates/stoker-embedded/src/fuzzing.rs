//! What holds for any bytes of a client, or of a damaged disk. Each function takes the input of one fuzz target of `fuzz/` and
//! panics where a property is broken. They stand here because what they call is private. Nothing of Stoker calls them.

use crate::patch::{self, Patch};
use crate::protobuf::{self, METADATA, Wire};
use crate::request::{self, Query};
use crate::schema::Shape;
use crate::select::{Fields, Labels};
use crate::table::jsonpath::JsonPath;
use crate::{body, object};
use http::{HeaderMap, HeaderValue, Method};
use serde_json::{Value, json};

pub use crate::journal::fuzzing::journal;

/// The parts of an input, which a zero byte ends.
fn parts<const N: usize>(bytes: &[u8]) -> [&[u8]; N] {
    let mut parts = bytes.splitn(N, |byte| *byte == 0);
    [(); N].map(|()| parts.next().unwrap_or_default())
}

/// An object and a patch of it: what comes out can be written, read again, and kept in a list and in the journal. A merge patch
/// that is applied twice is applied once.
pub fn patch(bytes: &[u8]) {
    let [value, patch] = parts(bytes);
    let Ok(parsed) = body::parse(value) else { return };
    for media in [patch::MERGE, patch::JSON, patch::STRATEGIC] {
        let Ok((change, _)) = Patch::read(media, patch, true) else { continue };
        let mut patched = parsed.value.clone();
        if change.apply(&mut patched).is_err() {
            continue;
        }
        let listed = json!({"items": [patched]}).to_string();
        let again: Result<Value, _> = serde_json::from_str(&listed);
        assert!(again.is_ok(), "{media}: a client cannot read a list with the object: {:?}", again.err());
        if media == patch::MERGE {
            let once = patched.clone();
            assert!(change.apply(&mut patched).is_ok() && patched == once, "a merge patch applied twice: {once}");
        }
    }
}

/// A body in JSON: read as serde_json reads it, unless it is too deep, and the repeated fields are those that it has more than once.
pub fn body(bytes: &[u8]) {
    let ours = body::parse(bytes);
    let theirs: Result<Value, _> = serde_json::from_slice(bytes);
    let taken = theirs.as_ref().is_ok_and(|theirs| body::depth(theirs) <= body::MAX_DEPTH);
    assert_eq!(ours.is_ok(), taken, "{:?} {:?}", ours.as_ref().err(), theirs.as_ref().err());
    let (Ok(ours), Ok(theirs)) = (ours, theirs) else { return };
    assert_eq!(ours.value, theirs);
    assert!(ours.repeated.len() <= 32);
    let text = theirs.to_string();
    let again = body::parse(text.as_bytes());
    assert!(again.is_ok_and(|again| again.value == theirs && again.repeated.is_empty()), "{text}");
    object::text(&theirs, "name");
    object::finalizers(&theirs);
}

/// A body in protobuf: what comes out is JSON that can be read again.
pub fn protobuf(bytes: &[u8]) {
    const OWNER: &[protobuf::WireField] = &[(1, "kind", Wire::Text), (6, "controller", Wire::Flag)];
    const TABLE: &[protobuf::WireField] = &[
        (1, "metadata", Wire::Message(METADATA)),
        (2, "data", Wire::BytesMap),
        (3, "type", Wire::Text),
        (4, "stringData", Wire::TextMap),
        (5, "immutable", Wire::Flag),
        (6, "owners", Wire::Messages(OWNER)),
    ];
    let Ok(value) = protobuf::decode(bytes, TABLE) else { return };
    let again: Result<Value, _> = serde_json::from_str(&value.to_string());
    assert!(again.is_ok_and(|again| again == value), "{value}");
}

/// The parts of a request besides its body, and the paths of columns: a JSONPath finds no value twice.
pub fn query(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    for method in [Method::GET, Method::DELETE] {
        let _ = Query::parse(&method, text);
    }
    let _ = request::segments(text);
    let mut headers = HeaderMap::new();
    if let Ok(value) = HeaderValue::from_str(text) {
        headers.insert(http::header::ACCEPT, value);
        let _ = request::form(&headers);
    }
    let value = json!({"a": [{"a": 0, "b": "x"}, {"a": {"b": [1, 2, 3]}}], "b": {"a": null, "a.b/c": true}, "n": "7"});
    if let Ok(labels) = Labels::parse(text) {
        labels.matches(Some(&value));
        labels.matches(None);
    }
    let _ = Fields::parse(text);
    if let Ok(path) = JsonPath::parse(text) {
        let mut found: Vec<*const Value> = path.find(&value).into_iter().map(std::ptr::from_ref).collect();
        let all = found.len();
        found.sort();
        found.dedup();
        assert_eq!(found.len(), all, "{text} finds a value twice");
    }
}

/// A schema and two versions of an object: pruning and defaults applied twice are applied once, and validation ends with a bounded
/// list of causes.
pub fn schema(bytes: &[u8]) {
    let [schema, value, old] = parts(bytes);
    let Ok(schema) = body::parse(schema) else { return };
    let Ok(shape) = Shape::compile(&schema.value, "schema") else { return };
    let Ok(value) = body::parse(value) else { return };
    let mut value = value.value;
    shape.prune(&mut value);
    assert!(shape.prune(&mut value).is_empty(), "pruned twice: {value}");
    shape.fill(&mut value);
    let once = value.clone();
    shape.fill(&mut value);
    assert_eq!(value, once, "defaults filled in twice");
    let old = body::parse(old).ok().map(|old| old.value);
    assert!(shape.validate(&value, old.as_ref(), &[]).len() <= 65);
}
