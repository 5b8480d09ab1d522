//! The walls between crates: each may depend on what is listed here and on nothing else. A line added here is a
//! decision; it belongs in the same change as its reason.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context as _, bail};
use serde_json::Value;

use crate::shell;

/// Direct dependencies, without those of tests, that each crate may have.
const WALLS: &[(&str, &[&str])] = &[
    // No tokio, kube, http: core cannot do IO.
    ("stoker-core", &["jiff", "sha2", "thiserror"]),
    // Types of Kubernetes, never a client. ring hashes a name as another project does.
    (
        "stoker-api",
        &[
            "jiff",
            "k8s-openapi",
            "kube-core",
            "kube-derive",
            "ring",
            "schemars",
            "serde",
            "serde_json",
            "stoker-core",
            "thiserror",
        ],
    ),
    // Bytes; knows no Kubernetes. Of core it takes what a reference is. flate2 undoes what proxies do to answers;
    // crypto_box seals logins for one node; rustix reads of a file what is in memory, without waiting for the disk.
    (
        "stoker-transfer",
        &[
            "axum",
            "base64",
            "bytes",
            "crypto_box",
            "flate2",
            "futures",
            "http",
            "http-body",
            "http-body-util",
            "httpdate",
            "hyper",
            "hyper-rustls",
            "hyper-util",
            "oci-spec",
            "ring",
            "rustix",
            "rustls",
            "serde",
            "serde-saphyr",
            "serde_json",
            "sha2",
            "stoker-core",
            "thiserror",
            "tokio",
            "tokio-rustls",
            "tokio-util",
            "toml",
            "tower",
            "tracing",
            "webpki-roots",
        ],
    ),
    (
        "stoker-runtime",
        &[
            "bytes",
            "flate2",
            "futures",
            "jiff",
            "oci-spec",
            "prost",
            "rustix",
            "serde",
            "serde_json",
            "sha2",
            "thiserror",
            "tokio",
            "toml",
            "tonic",
            "tonic-prost",
            "tracing",
            "zstd",
        ],
    ),
    // Of transfer it takes what a pull secret says, and how a login is sealed.
    (
        "stoker-controller",
        &[
            "futures",
            "jiff",
            "json-patch",
            "k8s-openapi",
            "kube",
            "prometheus-client",
            "serde",
            "serde_json",
            "stoker-api",
            "stoker-core",
            "stoker-transfer",
            "thiserror",
            "tokio",
            "tokio-util",
            "tracing",
        ],
    ),
    (
        "stoker-agent",
        &[
            "bytes",
            "futures",
            "jiff",
            "k8s-openapi",
            "kube",
            "prometheus-client",
            "serde",
            "serde_json",
            "stoker-api",
            "stoker-core",
            "stoker-runtime",
            "stoker-transfer",
            "thiserror",
            "tokio",
            "tokio-util",
            "tracing",
        ],
    ),
    // Kinds come in as data, so it knows no crate of ours.
    (
        "stoker-embedded",
        &[
            "base64",
            "bytes",
            "form_urlencoded",
            "futures",
            "http",
            "http-body",
            "http-body-util",
            "hyper",
            "hyper-util",
            "jiff",
            "json-patch",
            "k8s-openapi",
            "kube",
            "kube-cel",
            "percent-encoding",
            "rcgen",
            "regex",
            "rustls",
            "serde",
            "serde_json",
            "sha2",
            "subtle",
            "thiserror",
            "tokio",
            "tokio-rustls",
            "tokio-util",
            "tower",
            "tracing",
        ],
    ),
];

/// Crates that may use anything, and those that no crate we ship may use.
const OPEN: &[&str] = &["stoker", "stoker-fuzz", "stoker-testbed", "xtask"];
const DEVELOPMENT_ONLY: &[&str] = &["stoker-fuzz", "stoker-testbed", "xtask"];

/// Compares `cargo metadata` with the list.
pub(crate) fn check() -> anyhow::Result<()> {
    let output = shell::cargo_command(&["metadata", "--format-version", "1", "--no-deps", "--locked"]).output()?;
    let metadata: Value = serde_json::from_slice(&output.stdout).context("cargo metadata printed no JSON")?;
    let crates: BTreeMap<String, BTreeSet<String>> = metadata["packages"]
        .as_array()
        .context("cargo metadata has no packages")?
        .iter()
        .map(|package| (text(&package["name"]), dependencies(package)))
        .collect();
    let problems = problems(&crates);
    for problem in &problems {
        eprintln!("{problem}");
    }
    match problems.is_empty() {
        true => println!("the walls stand: {} crates", crates.len()),
        false => bail!("{} breaches; see xtask/src/walls.rs", problems.len()),
    }
    Ok(())
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_string()
}

fn dependencies(package: &Value) -> BTreeSet<String> {
    let all = package["dependencies"].as_array().into_iter().flatten();
    all.filter(|dependency| dependency["kind"].as_str() != Some("dev"))
        .map(|dependency| text(&dependency["name"]))
        .collect()
}

fn problems(crates: &BTreeMap<String, BTreeSet<String>>) -> Vec<String> {
    let mut problems = Vec::new();
    for (name, has) in crates {
        let shipped = !DEVELOPMENT_ONLY.contains(&name.as_str());
        for breach in has.iter().filter(|dependency| shipped && DEVELOPMENT_ONLY.contains(&dependency.as_str())) {
            problems.push(format!("{name} is shipped and depends on {breach}, which is for development only"));
        }
        let Some((_, may)) = WALLS.iter().find(|(walled, _)| walled == name) else {
            if !OPEN.contains(&name.as_str()) {
                problems.push(format!("{name} is not in the list of crates; add a crate only where a wall is needed"));
            }
            continue;
        };
        for breach in has.iter().filter(|dependency| !may.contains(&dependency.as_str())) {
            problems.push(format!("{name} must not depend on {breach}"));
        }
        for unused in may.iter().filter(|allowed| !has.contains(**allowed)) {
            problems.push(format!("{name} may depend on {unused} and does not: take it off the list"));
        }
    }
    problems
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_breach_is_named() {
        let deps = |names: &[&str]| names.iter().map(|name| name.to_string()).collect::<BTreeSet<_>>();
        let core = |more: &[&str]| {
            let all: Vec<&str> = WALLS[0].1.iter().copied().chain(more.iter().copied()).collect();
            BTreeMap::from([("stoker-core".to_string(), deps(&all))])
        };
        assert_eq!(problems(&core(&[])), Vec::<String>::new());
        assert_eq!(problems(&core(&["tokio"])), ["stoker-core must not depend on tokio"]);
        let shipped = BTreeMap::from([("stoker".to_string(), deps(&["stoker-testbed"]))]);
        assert_eq!(problems(&shipped).len(), 1);
        assert_eq!(problems(&BTreeMap::from([("new".to_string(), deps(&[]))])).len(), 1);
    }
}
