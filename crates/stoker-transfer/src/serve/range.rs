//! Which part of a file somebody wants.
//!
//! The text of a Range header and a length come in; the part to send goes out.

/// The answer to a Range header.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum RangeAnswer {
    /// All of it: nothing was asked for, or nothing that we do (several ranges, other units).
    Whole,
    /// From the first to the last byte, both of them in it.
    Some { first: u64, last: u64 },
    /// The range lies outside.
    Outside,
}

pub(super) fn part(header: Option<&str>, size: u64) -> RangeAnswer {
    let Some(range) = header.and_then(|text| text.trim().strip_prefix("bytes=")) else { return RangeAnswer::Whole };
    let Some((first, last)) = range.split_once('-') else { return RangeAnswer::Whole };
    match (number(first), number(last)) {
        (Number::Is(first), Number::Is(last)) if first > last => RangeAnswer::Whole,
        (Number::Is(first), _) if first >= size && !matches!(number(last), Number::Wrong) => RangeAnswer::Outside,
        (Number::Is(first), Number::Is(last)) => RangeAnswer::Some { first, last: last.min(size - 1) },
        (Number::Is(first), Number::Missing) => RangeAnswer::Some { first, last: size - 1 },
        (Number::Missing, Number::Is(0)) => RangeAnswer::Outside,
        (Number::Missing, Number::Is(_)) if size == 0 => RangeAnswer::Outside,
        (Number::Missing, Number::Is(most)) => RangeAnswer::Some { first: size.saturating_sub(most), last: size - 1 },
        _ => RangeAnswer::Whole,
    }
}

enum Number {
    Is(u64),
    Missing,
    Wrong,
}

fn number(text: &str) -> Number {
    match text.trim() {
        "" => Number::Missing,
        digits if digits.bytes().all(|b| b.is_ascii_digit()) => digits.parse().map_or(Number::Wrong, Number::Is),
        _ => Number::Wrong,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn single_ranges() {
        let some = |first, last| RangeAnswer::Some { first, last };
        for (header, expected) in [
            ("bytes=0-", some(0, 9)),
            ("bytes=3-5", some(3, 5)),
            ("bytes=3-99", some(3, 9)),
            ("bytes=-4", some(6, 9)),
            ("bytes=-99", some(0, 9)),
            ("bytes=10-", RangeAnswer::Outside),
            ("bytes=10-12", RangeAnswer::Outside),
            ("bytes=-0", RangeAnswer::Outside),
            ("bytes=5-3", RangeAnswer::Whole),
            ("bytes=1-2,4-5", RangeAnswer::Whole),
            ("bytes=10-x", RangeAnswer::Whole),
            ("bytes=-", RangeAnswer::Whole),
            ("items=1-2", RangeAnswer::Whole),
        ] {
            assert_eq!(part(Some(header), 10), expected, "{header}");
        }
        assert_eq!(part(None, 10), RangeAnswer::Whole);
        assert_eq!(part(Some("bytes=0-"), 0), RangeAnswer::Outside);
        assert_eq!(part(Some("bytes=-1"), 0), RangeAnswer::Outside);
    }

    proptest! {
        #[test]
        fn a_part_is_inside(text in "bytes=[0-9]{0,20}-?[0-9]{0,20}", size in 0u64..100) {
            if let RangeAnswer::Some { first, last } = part(Some(&text), size) {
                prop_assert!(first <= last && last < size);
            }
        }
    }
}
