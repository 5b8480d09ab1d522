//! A number of nodes or pods as people write it in manifests and annotations: `3`, or a percentage of them: `10%`.

use std::fmt;
use std::str::FromStr;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use serde_json::Value;
use stoker_core::model::Tolerance;

/// A number or a percentage on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    /// How many.
    pub number: u32,
    /// Whether `number` is a percentage; then it is at most 100.
    pub percent: bool,
}

/// Text that is neither.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("`{0}` is neither a number of nodes nor a percentage of them: write a whole number such as 3, or 10%")]
pub struct NotAShare(String);

impl Share {
    /// As the number of nodes that may fail.
    pub fn tolerance(self) -> Tolerance {
        Tolerance { number: self.number, percent: self.percent }
    }

    /// How many of `all` it is; percentages are rounded up.
    pub fn of(self, all: u64) -> u64 {
        match self.percent {
            true => all.saturating_mul(self.number.into()).div_ceil(100),
            false => self.number.into(),
        }
    }
}

impl FromStr for Share {
    type Err = NotAShare;

    fn from_str(text: &str) -> Result<Self, NotAShare> {
        let bad = || NotAShare(text.chars().take(40).collect());
        let (digits, percent) = text.strip_suffix('%').map_or((text, false), |digits| (digits, true));
        let plain = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
        let number: u32 = digits.parse().map_err(|_| bad())?;
        match plain && (!percent || number <= 100) {
            true => Ok(Self { number, percent }),
            false => Err(bad()),
        }
    }
}

impl fmt::Display for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.number, if self.percent { "%" } else { "" })
    }
}

impl Serialize for Share {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.percent {
            true => serializer.collect_str(self),
            false => serializer.serialize_u32(self.number),
        }
    }
}

impl<'de> Deserialize<'de> for Share {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = match Value::deserialize(deserializer)? {
            Value::String(text) => text,
            other => other.to_string(),
        };
        text.parse().map_err(de::Error::custom)
    }
}

impl JsonSchema for Share {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Share".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "x-kubernetes-int-or-string": true,
            "minimum": 0,
            "maximum": 999_999_999,
            "maxLength": 9,
            "pattern": "^([0-9]+|(100|[1-9]?[0-9])%)$",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_percentage_is_rounded_up_and_a_number_is_itself() {
        for (written, all, share) in
            [("0%", 5, 0), ("50%", 5, 3), ("100%", 5, 5), ("1%", 1, 1), ("7", 5, 7), ("7", 0, 7)]
        {
            assert_eq!(written.parse::<Share>().unwrap().of(all), share, "{written} of {all}");
        }
        assert_eq!(Share { number: 100, percent: true }.of(u64::MAX), u64::MAX / 100 + 1, "it does not overflow");
    }

    #[test]
    fn shares_are_read_and_written() {
        for (written, number, percent, back) in [
            (json!(0), 0, false, json!(0)),
            (json!(7), 7, false, json!(7)),
            (json!("7"), 7, false, json!(7)),
            (json!("10%"), 10, true, json!("10%")),
            (json!("100%"), 100, true, json!("100%")),
            (json!("999999999"), 999_999_999, false, json!(999_999_999)),
        ] {
            let share: Share = serde_json::from_value(written).unwrap();
            assert_eq!((share, json!(share)), (Share { number, percent }, back));
        }
        for written in
            [json!(-1), json!("-1"), json!("+1"), json!(""), json!("%"), json!("101%"), json!("1.5"), json!({})]
        {
            assert!(serde_json::from_value::<Share>(written.clone()).is_err(), "{written}");
        }
    }
}
