//! Amounts of bytes as people write them in manifests: `20Mi`, `1G`, `65536`.
//!
//! The same text as Kubernetes' own quantities, without fractions, signs and exponents, so that a schema's pattern can
//! hold it.

use std::fmt;
use std::str::FromStr;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// An amount of bytes on the wire, at least one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Amount(pub u64);

/// Text that is not an amount of bytes.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error(
    "`{0}` is not an amount of bytes: write a whole number, with Ki, Mi, Gi, Ti, k, M, G or T if you like, such as 20Mi"
)]
pub struct NotAnAmount(String);

/// The largest unit first, so that a number is written with the one that fits.
const UNITS: [(&str, u64); 8] = [
    ("Ti", 1 << 40),
    ("T", 1_000_000_000_000),
    ("Gi", 1 << 30),
    ("G", 1_000_000_000),
    ("Mi", 1 << 20),
    ("M", 1_000_000),
    ("Ki", 1 << 10),
    ("k", 1_000),
];

impl FromStr for Amount {
    type Err = NotAnAmount;

    fn from_str(text: &str) -> Result<Self, NotAnAmount> {
        let bad = || NotAnAmount(text.chars().take(40).collect());
        let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
        let (number, unit) = text.split_at(digits);
        let number: u64 = number.parse().map_err(|_| bad())?;
        let unit = match unit {
            "" => 1,
            unit => UNITS.iter().find(|(name, _)| *name == unit).ok_or_else(bad)?.1,
        };
        number.checked_mul(unit).filter(|bytes| *bytes > 0).map(Self).ok_or_else(bad)
    }
}

impl fmt::Display for Amount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The pattern has no more than six digits before the largest units.
        let fits = |unit: u64| unit < 1_000_000_000_000 || self.0 / unit < 1_000_000;
        match UNITS.iter().find(|(_, unit)| self.0.is_multiple_of(*unit) && fits(*unit)) {
            Some((name, unit)) => write!(f, "{}{name}", self.0 / unit),
            None => write!(f, "{}", self.0),
        }
    }
}

impl Serialize for Amount {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Amount {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
    }
}

impl JsonSchema for Amount {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Amount".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "string",
            "maxLength": 20,
            "pattern": "^[1-9][0-9]{0,14}(Ki|Mi|Gi|k|M|G)?$|^[1-9][0-9]{0,5}(Ti|T)$",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_are_read_and_written() {
        for (text, bytes, back) in [
            ("1", 1, "1"),
            ("20Mi", 20 << 20, "20Mi"),
            ("1000k", 1_000_000, "1M"),
            ("1024Ki", 1 << 20, "1Mi"),
            ("3G", 3_000_000_000, "3G"),
            ("65537", 65537, "65537"),
            ("1048576000Gi", 1_048_576_000 << 30, "1048576000Gi"),
            ("999999Ti", 999_999 << 40, "999999Ti"),
        ] {
            let amount: Amount = text.parse().unwrap();
            assert_eq!((amount.0, amount.to_string().as_str()), (bytes, back));
        }
        for text in
            ["", "0", "0Mi", "-1", "1.5Gi", "Mi", "1 Mi", "1mi", "99999999999999999999", "18446744073709551615Ti"]
        {
            assert!(text.parse::<Amount>().unwrap_err().to_string().contains(text), "{text}");
        }
    }
}
