//! Lengths of time as people write them in manifests: `90s`, `10m`, `1h30m`.
//!
//! The same text as Kubernetes' own durations, without fractions and signs, so that a schema's pattern can hold it.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// A length of time on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Span(pub Duration);

/// Text that is not a length of time.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("`{0}` is not a length of time: write whole numbers with h, m, s or ms, such as 90s or 1h30m")]
pub struct NotASpan(String);

impl FromStr for Span {
    type Err = NotASpan;

    fn from_str(text: &str) -> Result<Self, NotASpan> {
        let bad = || NotASpan(text.chars().take(40).collect());
        let mut rest = text;
        let mut millis: u64 = 0;
        while !rest.is_empty() {
            let digits = rest.find(|c: char| !c.is_ascii_digit()).ok_or_else(bad)?;
            let (number, after) = rest.split_at(digits);
            let number: u64 = number.parse().map_err(|_| bad())?;
            let letters = after.find(|c: char| c.is_ascii_digit()).unwrap_or(after.len());
            let (unit, after) = after.split_at(letters);
            let unit = match unit {
                "ms" => 1,
                "s" => 1_000,
                "m" => 60_000,
                "h" => 3_600_000,
                _ => return Err(bad()),
            };
            millis = number.checked_mul(unit).and_then(|part| millis.checked_add(part)).ok_or_else(bad)?;
            rest = after;
        }
        match text.is_empty() {
            true => Err(bad()),
            false => Ok(Self(Duration::from_millis(millis))),
        }
    }
}

/// As long as the schema can write it, some hundred thousand years: a longer one is as good as this.
const LONGEST: u128 = 999_999_999 * 3_600_000;

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let millis = self.0.as_millis().min(LONGEST);
        let parts = [
            (millis / 3_600_000, "h"),
            (millis / 60_000 % 60, "m"),
            (millis / 1_000 % 60, "s"),
            (millis % 1_000, "ms"),
        ];
        if millis == 0 {
            return f.write_str("0s");
        }
        parts.iter().filter(|(number, _)| *number > 0).try_for_each(|(number, unit)| write!(f, "{number}{unit}"))
    }
}

impl Serialize for Span {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Span {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
    }
}

impl JsonSchema for Span {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Span".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "maxLength": 32, "pattern": "^([0-9]{1,9}(h|m|s|ms))+$" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans() {
        for (text, millis) in [("90s", 90_000), ("1h30m", 5_400_000), ("10m", 600_000), ("250ms", 250), ("0s", 0)] {
            let span: Span = text.parse().unwrap();
            assert_eq!(span.0, Duration::from_millis(millis), "{text}");
            assert_eq!(span.to_string().parse::<Span>().unwrap(), span, "{text}");
        }
        let long: Span = "999999999h999999999h".parse().unwrap();
        assert_eq!((long.to_string().as_str(), Span(Duration::MAX).to_string()), ("999999999h", long.to_string()));
        for text in ["", "10", "m", "1.5h", "-1s", "5d", "99999999999999999999h", "9999999999999999h9999999999999999h"]
        {
            assert!(text.parse::<Span>().is_err(), "{text}");
        }
    }
}
