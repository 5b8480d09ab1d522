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

/// Units with the most digits of a number before them, the largest unit first, so that a number is written with the one that fits. No
/// number of so many digits is too large for 64 bits, so the pattern of the schema allows just what can be read.
const UNITS: [(&str, u64, usize); 9] = [
    ("Ti", 1 << 40, 6),
    ("T", 1_000_000_000_000, 6),
    ("Gi", 1 << 30, 10),
    ("G", 1_000_000_000, 10),
    ("Mi", 1 << 20, 13),
    ("M", 1_000_000, 13),
    ("Ki", 1 << 10, 15),
    ("k", 1_000, 15),
    ("", 1, 18),
];

impl FromStr for Amount {
    type Err = NotAnAmount;

    fn from_str(text: &str) -> Result<Self, NotAnAmount> {
        let bad = || NotAnAmount(text.chars().take(40).collect());
        let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
        let (number, unit) = text.split_at(digits);
        let (_, unit, most) = UNITS.iter().find(|(name, ..)| *name == unit).ok_or_else(bad)?;
        let number: u64 = number.parse().map_err(|_| bad())?;
        let short = number.checked_ilog10().is_some_and(|log| usize::try_from(log).is_ok_and(|log| log < *most));
        number.checked_mul(*unit).filter(|_| short).map(Self).ok_or_else(bad)
    }
}

impl fmt::Display for Amount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = |unit: u64| (self.0 / unit).to_string();
        let fits = |unit: u64, most: usize| self.0.is_multiple_of(unit) && text(unit).len() <= most;
        match UNITS.iter().find(|(_, unit, most)| fits(*unit, *most)) {
            Some((name, unit, _)) => write!(f, "{}{name}", text(*unit)),
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
        let units = UNITS.iter().map(|(name, _, most)| format!("^[1-9][0-9]{{0,{}}}{name}$", most - 1));
        json_schema!({ "type": "string", "maxLength": 20, "pattern": units.collect::<Vec<_>>().join("|") })
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

    /// What the schema takes and we cannot read would be a job that nothing is said of; what we write and the schema refuses would be an
    /// order that reaches no node.
    #[test]
    fn the_largest_amount_of_each_unit_is_read_and_written_and_the_next_one_is_not() {
        for (name, unit, most) in UNITS {
            let largest = format!("{}{name}", "9".repeat(most));
            let amount: Amount = largest.parse().unwrap();
            assert_eq!(u128::from(amount.0), "9".repeat(most).parse::<u128>().unwrap() * u128::from(unit), "{largest}");
            assert_eq!(amount.to_string().parse(), Ok(amount), "{largest}");
            assert!(format!("1{}{name}", "0".repeat(most)).parse::<Amount>().is_err(), "{largest}");
        }
        assert!("999999999999999Gi".parse::<Amount>().is_err());
    }
}
