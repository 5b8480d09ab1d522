//! Which part of a file somebody wants.
//!
//! The text of a Range header and a length come in; the part to send goes out.

/// The answer to a Range header.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Part {
    /// All of it: nothing was asked for, or nothing that we do (several ranges, other units).
    Whole,
    /// From the first to the last byte, both of them in it.
    Some { first: u64, last: u64 },
    /// The range lies outside.
    Outside,
}

pub(super) fn part(header: Option<&str>, size: u64) -> Part {
    let Some(range) = header.and_then(|text| text.trim().strip_prefix("bytes=")) else { return Part::Whole };
    let Some((first, last)) = range.split_once('-') else { return Part::Whole };
    match (number(first), number(last)) {
        (Number::Is(first), Number::Is(last)) if first > last => Part::Whole,
        (Number::Is(first), _) if first >= size && !matches!(number(last), Number::Wrong) => Part::Outside,
        (Number::Is(first), Number::Is(last)) => Part::Some { first, last: last.min(size - 1) },
        (Number::Is(first), Number::Missing) => Part::Some { first, last: size - 1 },
        (Number::Missing, Number::Is(0)) => Part::Outside,
        (Number::Missing, Number::Is(_)) if size == 0 => Part::Outside,
        (Number::Missing, Number::Is(most)) => Part::Some { first: size.saturating_sub(most), last: size - 1 },
        _ => Part::Whole,
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
        let some = |first, last| Part::Some { first, last };
        for (header, expected) in [
            ("bytes=0-", some(0, 9)),
            ("bytes=3-5", some(3, 5)),
            ("bytes=3-99", some(3, 9)),
            ("bytes=-4", some(6, 9)),
            ("bytes=-99", some(0, 9)),
            ("bytes=10-", Part::Outside),
            ("bytes=10-12", Part::Outside),
            ("bytes=-0", Part::Outside),
            ("bytes=5-3", Part::Whole),
            ("bytes=1-2,4-5", Part::Whole),
            ("bytes=10-x", Part::Whole),
            ("bytes=-", Part::Whole),
            ("items=1-2", Part::Whole),
        ] {
            assert_eq!(part(Some(header), 10), expected, "{header}");
        }
        assert_eq!(part(None, 10), Part::Whole);
        assert_eq!(part(Some("bytes=0-"), 0), Part::Outside);
        assert_eq!(part(Some("bytes=-1"), 0), Part::Outside);
    }

    proptest! {
        #[test]
        fn a_part_is_inside(text in "bytes=[0-9]{0,20}-?[0-9]{0,20}", size in 0u64..100) {
            if let Part::Some { first, last } = part(Some(&text), size) {
                prop_assert!(first <= last && last < size);
            }
        }
    }
}
