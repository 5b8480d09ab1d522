//! Bodies in protobuf. kubectl's imperative forms (`create namespace`, `create secret docker-registry` …) send nothing else. In:
//! bytes and a row's table of fields. Out: the same object as JSON. A field that is not in the table is refused, never lost.

use crate::refusal::Refusal;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value, json};

/// The media type.
pub(crate) const MEDIA: &str = "application/vnd.kubernetes.protobuf";
/// The four bytes that every body begins with.
const MAGIC: &[u8] = b"k8s\0";
/// Messages inside messages; the tables go three deep.
const MAX_DEPTH: usize = 8;

/// One field of a message: number, JSON name, form.
pub(crate) type WireField = (u64, &'static str, Wire);

/// How a field is written.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Wire {
    Text,
    Flag,
    Texts,
    TextMap,
    BytesMap,
    Message(&'static [WireField]),
    Messages(&'static [WireField]),
    /// Of no meaning in a request: the server writes it.
    Ignored,
}

/// `metadata`, as far as a client writes it.
pub(crate) const METADATA: &[WireField] = &[
    (1, "name", Wire::Text),
    (2, "generateName", Wire::Text),
    (3, "namespace", Wire::Text),
    (4, "selfLink", Wire::Ignored),
    (5, "uid", Wire::Text),
    (6, "resourceVersion", Wire::Text),
    (7, "generation", Wire::Ignored),
    (8, "creationTimestamp", Wire::Ignored),
    (11, "labels", Wire::TextMap),
    (12, "annotations", Wire::TextMap),
    (14, "finalizers", Wire::Texts),
    (17, "managedFields", Wire::Ignored),
];

/// What a stranger's bytes can be.
enum Part<'a> {
    Number(u64),
    Bytes(&'a [u8]),
}

fn wrong() -> Refusal {
    Refusal::bad_request("the body is not the protobuf that its media type says; send JSON")
}

/// Reads an object whose kind has a table.
pub(crate) fn decode(body: &[u8], fields: &'static [WireField]) -> Result<Value, Refusal> {
    if fields.is_empty() {
        let advice =
            "application/json (this kind cannot be read as protobuf; kubectl: write the object to a file and use -f)";
        return Err(Refusal::unsupported_media(&[advice]));
    }
    let envelope = body.strip_prefix(MAGIC).ok_or_else(wrong)?;
    let (mut api_version, mut kind, mut raw) = (Value::Null, Value::Null, &[][..]);
    for (number, part) in parts(envelope)? {
        match (number, part) {
            (1, Part::Bytes(bytes)) => {
                for (number, part) in parts(bytes)? {
                    match (number, part) {
                        (1, Part::Bytes(text)) => api_version = string(text)?,
                        (2, Part::Bytes(text)) => kind = string(text)?,
                        _ => {}
                    }
                }
            }
            (2, Part::Bytes(bytes)) => raw = bytes,
            _ => {}
        }
    }
    let mut object = message(raw, fields, 0)?;
    object.insert("apiVersion".to_owned(), api_version);
    object.insert("kind".to_owned(), kind);
    Ok(Value::Object(object))
}

fn message(bytes: &[u8], fields: &'static [WireField], depth: usize) -> Result<Map<String, Value>, Refusal> {
    if depth > MAX_DEPTH {
        return Err(wrong());
    }
    let mut map = Map::new();
    for (number, part) in parts(bytes)? {
        let Some((_, name, wire)) = fields.iter().find(|(known, _, _)| *known == number) else {
            let advice =
                format!("application/json (field {number} of this protobuf is not known here; kubectl: use -f)");
            return Err(Refusal::unsupported_media(&[&advice]));
        };
        match (wire, part) {
            (Wire::Ignored, _) => {}
            (Wire::Text, Part::Bytes([])) => {}
            (Wire::Text, Part::Bytes(text)) => drop(map.insert((*name).to_owned(), string(text)?)),
            (Wire::Flag, Part::Number(flag)) => drop(map.insert((*name).to_owned(), json!(flag != 0))),
            (Wire::Texts, Part::Bytes(text)) => append(&mut map, name, string(text)?),
            (Wire::Messages(fields), Part::Bytes(bytes)) => {
                append(&mut map, name, Value::Object(message(bytes, fields, depth + 1)?));
            }
            (Wire::Message(fields), Part::Bytes(bytes)) => {
                drop(map.insert((*name).to_owned(), Value::Object(message(bytes, fields, depth + 1)?)));
            }
            (Wire::TextMap | Wire::BytesMap, Part::Bytes(bytes)) => {
                let (key, value) = entry(bytes)?;
                let value = if matches!(wire, Wire::TextMap) { string(value)? } else { json!(STANDARD.encode(value)) };
                let inner = map.entry(*name).or_insert_with(|| json!({}));
                crate::object::object_mut(inner).insert(key, value);
            }
            _ => return Err(wrong()),
        }
    }
    Ok(map)
}

fn append(map: &mut Map<String, Value>, name: &str, value: Value) {
    if let Value::Array(list) = map.entry(name).or_insert_with(|| json!([])) {
        list.push(value);
    }
}

/// A map entry is a message of key and value.
fn entry(bytes: &[u8]) -> Result<(String, &[u8]), Refusal> {
    let (mut key, mut value) = (String::new(), &[][..]);
    for (number, part) in parts(bytes)? {
        match (number, part) {
            (1, Part::Bytes(bytes)) => key = std::str::from_utf8(bytes).map_err(|_| wrong())?.to_owned(),
            (2, Part::Bytes(bytes)) => value = bytes,
            _ => return Err(wrong()),
        }
    }
    Ok((key, value))
}

fn string(bytes: &[u8]) -> Result<Value, Refusal> {
    std::str::from_utf8(bytes).map(|text| json!(text)).map_err(|_| wrong())
}

/// The fields of a message in order.
fn parts(mut bytes: &[u8]) -> Result<Vec<(u64, Part<'_>)>, Refusal> {
    let mut found = Vec::new();
    while !bytes.is_empty() {
        let tag = varint(&mut bytes)?;
        let part = match tag & 7 {
            0 => Part::Number(varint(&mut bytes)?),
            2 => {
                let length = usize::try_from(varint(&mut bytes)?).map_err(|_| wrong())?;
                let (part, rest) = bytes.split_at_checked(length).ok_or_else(wrong)?;
                bytes = rest;
                Part::Bytes(part)
            }
            _ => return Err(wrong()),
        };
        found.push((tag >> 3, part));
    }
    Ok(found)
}

fn varint(bytes: &mut &[u8]) -> Result<u64, Refusal> {
    let mut value = 0_u64;
    for shift in (0..64).step_by(7) {
        let (first, rest) = bytes.split_first().ok_or_else(wrong)?;
        *bytes = rest;
        value |= u64::from(first & 0x7f) << shift;
        if first & 0x80 == 0 {
            return Ok(value);
        }
    }
    Err(wrong())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const TABLE: &[WireField] = &[
        (1, "metadata", Wire::Message(METADATA)),
        (2, "data", Wire::BytesMap),
        (3, "type", Wire::Text),
        (4, "stringData", Wire::TextMap),
        (5, "immutable", Wire::Flag),
    ];

    fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
        [&[number << 3 | 2, u8::try_from(bytes.len()).unwrap()], bytes].concat()
    }

    fn body(raw: &[u8]) -> Vec<u8> {
        let kind = [field(1, b"v1"), field(2, b"Secret")].concat();
        [MAGIC, &field(1, &kind), &field(2, raw), &field(3, b""), &field(4, b"")].concat()
    }

    #[test]
    fn an_object_becomes_json() {
        let metadata =
            [field(1, b"s"), field(2, b""), field(8, b""), field(11, &[field(1, b"a"), field(2, b"b")].concat())];
        let data = [field(1, b"k"), field(2, b"\xff")].concat();
        let raw = [field(1, &metadata.concat()), field(2, &data), field(3, b"Opaque"), vec![5 << 3, 1]].concat();
        let wanted = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s", "labels": {"a": "b"}},
            "data": {"k": "/w=="}, "type": "Opaque", "immutable": true});
        assert_eq!(decode(&body(&raw), TABLE).unwrap(), wanted);
    }

    #[test]
    fn what_is_not_known_is_refused() {
        assert_eq!(decode(&body(&field(9, b"x")), TABLE).unwrap_err().code, 415);
        assert_eq!(decode(&body(b""), &[]).unwrap_err().code, 415);
        assert_eq!(decode(b"{}", TABLE).unwrap_err().code, 400);
    }

    proptest! {
        #[test]
        fn no_bytes_panic(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
            let _ = decode(&body(&bytes), TABLE);
            let _ = decode(&[MAGIC, &bytes].concat(), TABLE);
        }
    }
}
