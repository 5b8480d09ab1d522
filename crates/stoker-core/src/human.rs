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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_short() {
        for (number, text) in
            [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (60 << 20, "60.0 MiB"), (u64::MAX, "16777216.0 TiB")]
        {
            assert_eq!(bytes(number), text);
        }
    }
}
