//! Names from anywhere.

use proptest::prelude::*;
use stoker_transfer::{Platform, Reference};

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_text_is_parsed_without_panic(text in ".{0,120}") {
        let _ = text.parse::<Reference>();
        let _ = text.parse::<Platform>();
    }

    #[test]
    fn what_parses_has_one_canonical_form(text in "([a-zA-Z0-9.-]{1,12}(:[0-9]{1,4})?/)?[a-z0-9._/-]{1,20}(:[a-zA-Z0-9_.-]{1,10})?") {
        if let Ok(reference) = text.parse::<Reference>() {
            let canonical = reference.to_string();
            prop_assert_eq!(canonical.parse::<Reference>().unwrap(), reference.clone());
            prop_assert!(!reference.repository().contains("..") && !reference.repository().starts_with('/'));
            prop_assert!(reference.tag().is_some() || reference.digest().is_some());
        }
    }
}
