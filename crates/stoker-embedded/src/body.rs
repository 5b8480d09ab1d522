//! JSON of a stranger, read with the fields that it gives more than once: the last one counts, and a strict client is told. In:
//! bytes. Out: a value and the paths. It bounds the paths, not the value; whoever read the bytes did that.

use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};
use std::cell::RefCell;
use std::fmt;

/// Lists and maps inside each other that an object may have. Readers of JSON give up at 128 (serde_json), and a list or an event
/// adds some: an object that is deeper could be stored, and then neither listed nor read from the journal.
pub(crate) const MAX_DEPTH: usize = 100;
/// More paths than this help nobody.
const MAX_REPEATED: usize = 32;

/// A value, and what was given more than once in it.
#[derive(Debug)]
pub(crate) struct Parsed {
    pub(crate) value: Value,
    pub(crate) repeated: Vec<String>,
}

pub(crate) fn parse(bytes: &[u8]) -> Result<Parsed, serde_json::Error> {
    let repeated = RefCell::new(Vec::new());
    let mut reader = serde_json::Deserializer::from_slice(bytes);
    let value = BodyNode { path: &Path::Root, depth: 0, repeated: &repeated }.deserialize(&mut reader)?;
    reader.end()?;
    Ok(Parsed { value, repeated: repeated.into_inner() })
}

/// How many lists and maps are inside each other in a value.
pub(crate) fn depth(value: &Value) -> usize {
    match value {
        Value::Array(list) => 1 + list.iter().map(depth).max().unwrap_or(0),
        Value::Object(map) => 1 + map.values().map(depth).max().unwrap_or(0),
        _ => 0,
    }
}

/// What is said of a value that is too deep.
pub(crate) fn too_deep() -> String {
    format!("it is nested deeper than {MAX_DEPTH} levels; flatten it")
}

/// Where we are; written out only when it is needed.
enum Path<'a> {
    Root,
    Field(&'a Path<'a>, &'a str),
    Item(&'a Path<'a>, usize),
}

impl fmt::Display for Path<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Path::Root => Ok(()),
            Path::Field(Path::Root, name) => f.write_str(name),
            Path::Field(parent, name) => write!(f, "{parent}.{name}"),
            Path::Item(parent, at) => write!(f, "{parent}[{at}]"),
        }
    }
}

struct BodyNode<'a> {
    path: &'a Path<'a>,
    depth: usize,
    repeated: &'a RefCell<Vec<String>>,
}

impl BodyNode<'_> {
    /// The depth of what is inside.
    fn inside<E: Error>(&self) -> Result<usize, E> {
        if self.depth < MAX_DEPTH { Ok(self.depth + 1) } else { Err(E::custom(too_deep())) }
    }
}

impl<'de> DeserializeSeed<'de> for BodyNode<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for BodyNode<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Value, E> {
        Number::from_f64(value).map(Value::Number).ok_or_else(|| E::custom("a number is out of range"))
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_string<E>(self, value: String) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let depth = self.inside()?;
        let mut list = Vec::new();
        loop {
            let path = Path::Item(self.path, list.len());
            let node = BodyNode { path: &path, depth, repeated: self.repeated };
            let Some(item) = items.next_element_seed(node)? else { break };
            list.push(item);
        }
        Ok(Value::Array(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<Value, A::Error> {
        let depth = self.inside()?;
        let mut map = Map::new();
        while let Some(name) = fields.next_key::<String>()? {
            let path = Path::Field(self.path, &name);
            let value = fields.next_value_seed(BodyNode { path: &path, depth, repeated: self.repeated })?;
            if map.contains_key(&name) {
                let mut repeated = self.repeated.borrow_mut();
                if repeated.len() < MAX_REPEATED {
                    repeated.push(path.to_string());
                }
            }
            map.insert(name, value);
        }
        Ok(Value::Object(map))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn fields_given_twice_are_found_at_every_depth() {
        let parsed = parse(br#"{"a": 1, "b": [{"c": 1, "c": 2}], "a": {"d": 1.5, "d": null}}"#).unwrap();
        assert_eq!(parsed.repeated, ["b[0].c", "a.d", "a"]);
        assert_eq!(parsed.value, serde_json::json!({"a": {"d": null}, "b": [{"c": 2}]}));
    }

    #[test]
    fn a_number_is_the_same_when_it_is_read_again() {
        for text in ["[184467440737590516744]", "[0.1]", "[1e300]", "[5e-324]", "[123456789.12345679]"] {
            let once = parse(text.as_bytes()).unwrap().value;
            assert_eq!(parse(once.to_string().as_bytes()).unwrap().value, once, "{text}");
        }
    }

    #[test]
    fn what_is_nested_too_deep_is_refused() {
        let nested = |depth: usize| ["[".repeat(depth), "]".repeat(depth)].concat();
        assert_eq!(depth(&parse(nested(MAX_DEPTH).as_bytes()).unwrap().value), MAX_DEPTH);
        let refused = parse(nested(MAX_DEPTH + 1).as_bytes()).unwrap_err();
        assert!(refused.to_string().starts_with("it is nested deeper than 100 levels; flatten it"), "{refused}");
    }

    proptest! {
        #[test]
        fn the_value_is_what_serde_json_reads(text in r#"[\[\]{}:,"a-c0-9.eE \-]{0,40}|\{"a":[0-9.e-]{1,8},"b":\["c",true,null\]\}"#) {
            let (ours, theirs) = (parse(text.as_bytes()), serde_json::from_str::<Value>(&text));
            prop_assert_eq!(ours.map(|p| p.value).ok(), theirs.ok());
        }
    }
}
