//! Pull to ready on a real containerd: ours against CRI PullImage and `ctr pull` of the same containerd, in turns.
//!
//! Prints `name value` lines and the single ratios; `cargo xtask bench pull` runs it. Every run has a containerd with an
//! empty root, and the contents of all ways are compared before any time counts. With arguments only these of: `time`,
//! `bytes`, `memory`; with a number the rounds.

mod arms;
mod bytes;
mod images;
mod memory;
mod time;

use stoker_testbed::containerd::Version;

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

#[tokio::main]
async fn main() -> Outcome<()> {
    let words: Vec<String> = std::env::args().skip(1).filter(|word| !word.starts_with("--")).collect();
    let rounds = words.iter().find_map(|word| word.parse().ok()).unwrap_or(5);
    let parts: Vec<&str> = words.iter().map(String::as_str).filter(|word| word.parse::<usize>().is_err()).collect();
    let wanted = |part: &str| parts.is_empty() || parts.contains(&part);
    for (version, name) in [(Version::Debian, "1.6"), (Version::Two, "2.2")] {
        if wanted("time") {
            time::measure(version, name, rounds).await?;
        }
        if wanted("bytes") {
            bytes::measure(version, name).await?;
        }
        if wanted("memory") {
            memory::measure(version, name).await?;
        }
    }
    Ok(())
}
