//! Numbers as people read them.

/// `1.5 MiB`.
pub fn bytes(bytes: u64) -> String {
    let mut value = bytes as f64;
    for unit in ["B", "KiB", "MiB", "GiB", "TiB"] {
        if value < 1024.0 || unit == "TiB" {
            return match unit {
                "B" => format!("{bytes} B"),
                _ => format!("{value:.1} {unit}"),
            };
        }
        value /= 1024.0;
    }
    String::new()
}

/// `1.5MiB`: the same as one word, for the columns of tables that programs read too.
pub fn bytes_in_a_word(bytes: u64) -> String {
    self::bytes(bytes).replace(' ', "")
}

/// `1 node`, `3 nodes`.
pub fn count(number: u32, thing: &str) -> String {
    match number {
        1 => format!("1 {thing}"),
        number => format!("{number} {thing}s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_and_numbers_agree() {
        assert_eq!(bytes_in_a_word(1536), "1.5KiB");
        assert_eq!([0, 1, 2].map(|number| count(number, "node")), ["0 nodes", "1 node", "2 nodes"]);
    }

    #[test]
    fn bytes_are_short() {
        for (number, text) in
            [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (60 << 20, "60.0 MiB"), (u64::MAX, "16777216.0 TiB")]
        {
            assert_eq!(bytes(number), text);
        }
    }
}
