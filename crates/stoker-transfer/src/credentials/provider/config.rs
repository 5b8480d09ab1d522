//! The kubelet's `CredentialProviderConfig`, read.
//!
//! A file comes in, YAML or JSON; plugins in their order go out, or what the kubelet too would refuse. The values of
//! environment variables are never shown.

use std::fmt;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Deserialize;

use super::super::pattern::Pattern;
use crate::reference::Reference;

const MOST_BYTES: u64 = 1024 * 1024;
const MOST_PLUGINS: usize = 64;
const GROUP: &str = "kubelet.config.k8s.io/";
/// The versions of the plugins' own protocol.
const PROTOCOLS: [&str; 3] = [
    "credentialprovider.kubelet.k8s.io/v1",
    "credentialprovider.kubelet.k8s.io/v1beta1",
    "credentialprovider.kubelet.k8s.io/v1alpha1",
];

/// What is wrong with the kubelet's configuration of plugins.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs)] // The fields are the words of the messages above them.
pub enum ConfigError {
    /// The file cannot be read.
    #[error("cannot read {}: {cause}; give the file that the kubelet has as --image-credential-provider-config", .file.display())]
    Unreadable { file: PathBuf, cause: String },
    /// The file is of another shape.
    #[error("{} is no CredentialProviderConfig (line {line}); give the file that the kubelet has as --image-credential-provider-config", .file.display())]
    Shape { file: PathBuf, line: u64 },
    /// A field that cannot be what it is.
    #[error("{field} in {} {why}; put it right, as the kubelet wants it too", .file.display())]
    Field { file: PathBuf, field: String, why: String },
}

/// One plugin, and what it is for.
pub(super) struct Plugin {
    pub(super) name: String,
    pub(super) patterns: Vec<Pattern>,
    pub(super) keep: Duration,
    pub(super) protocol: &'static str,
    pub(super) args: Vec<String>,
    pub(super) env: Vec<(String, String)>,
    /// It wants the token of a pod's service account, and there is no pod here.
    pub(super) needs_pod: bool,
}

impl Plugin {
    pub(super) fn is_for(&self, image: &Reference) -> bool {
        self.patterns.iter().any(|pattern| pattern.matches(image))
    }
}

impl fmt::Debug for Plugin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Plugin({})", self.name)
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Config {
    api_version: String,
    kind: String,
    providers: Vec<WrittenProvider>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct WrittenProvider {
    name: String,
    match_images: Vec<String>,
    default_cache_duration: Option<String>,
    api_version: String,
    #[serde(default)]
    args: Option<Vec<String>>,
    #[serde(default)]
    env: Option<Vec<Variable>>,
    #[serde(default)]
    token_attributes: Option<TokenAttributes>,
}

#[derive(Deserialize)]
struct Variable {
    name: String,
    value: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct TokenAttributes {
    #[serde(default)]
    require_service_account: bool,
}

pub(super) fn load(file: &Path) -> Result<Vec<Plugin>, ConfigError> {
    let unreadable = |cause: String| ConfigError::Unreadable { file: file.to_owned(), cause };
    let mut text = String::new();
    let open = std::fs::File::open(file).map_err(|e| unreadable(e.to_string()))?;
    open.take(MOST_BYTES + 1).read_to_string(&mut text).map_err(|e| unreadable(e.to_string()))?;
    if text.len() as u64 > MOST_BYTES {
        return Err(unreadable("it is larger than 1 MiB".to_owned()));
    }
    parse(file, &text)
}

fn parse(file: &Path, text: &str) -> Result<Vec<Plugin>, ConfigError> {
    // JSON is YAML too. The parser's own words may quote a line, and a line may be a secret.
    let config: Config = serde_saphyr::from_str(text).map_err(|error| ConfigError::Shape {
        file: file.to_owned(),
        line: error.location().map_or(1, |location| location.line()),
    })?;
    let wrong = |field: &str, why: String| ConfigError::Field { file: file.to_owned(), field: field.to_owned(), why };
    let version = config.api_version.strip_prefix(GROUP).unwrap_or("");
    if config.kind != "CredentialProviderConfig" || !matches!(version, "v1" | "v1beta1" | "v1alpha1") {
        let why = format!("must be {GROUP}v1 CredentialProviderConfig (or v1beta1, v1alpha1)");
        return Err(wrong("apiVersion and kind", why));
    }
    if config.providers.is_empty() || config.providers.len() > MOST_PLUGINS {
        return Err(wrong("providers", "must have 1 to 64 entries".to_owned()));
    }
    let mut plugins: Vec<Plugin> = Vec::new();
    for (number, written) in config.providers.into_iter().enumerate() {
        let plugin = plugin(written).map_err(|(field, why)| wrong(&format!("providers[{number}].{field}"), why))?;
        if plugins.iter().any(|known| known.name == plugin.name) {
            return Err(wrong(&format!("providers[{number}].name"), format!("is {:?} once more", plugin.name)));
        }
        plugins.push(plugin);
    }
    Ok(plugins)
}

fn plugin(written: WrittenProvider) -> Result<Plugin, (&'static str, String)> {
    let name = written.name;
    // A program of that directory and of no other.
    if name.is_empty() || name == "." || name == ".." || name.contains(['/', '\\', ' ', '\0']) {
        return Err(("name", "must be the name of a program, without a path".to_owned()));
    }
    if written.match_images.is_empty() {
        return Err(("matchImages", "must name at least one pattern".to_owned()));
    }
    let pattern =
        |text: &String| Pattern::read(text).ok_or(("matchImages", format!("holds {text:?}, which is no place")));
    let patterns = written.match_images.iter().map(pattern).collect::<Result<Vec<_>, _>>()?;
    let protocol = PROTOCOLS.into_iter().find(|known| *known == written.api_version);
    let protocol = protocol.ok_or_else(|| ("apiVersion", format!("must be one of {}", PROTOCOLS.join(", "))))?;
    let keep = written.default_cache_duration.as_deref().and_then(duration);
    let keep = keep.ok_or(("defaultCacheDuration", "must be a duration like 12h".to_owned()))?;
    let env: Vec<_> = written.env.unwrap_or_default().into_iter().map(|v| (v.name, v.value)).collect();
    if env.iter().any(|(name, value)| name.is_empty() || name.contains(['=', '\0']) || value.contains('\0')) {
        return Err(("env", "has a variable that cannot be one".to_owned()));
    }
    let args = written.args.unwrap_or_default();
    let needs_pod = written.token_attributes.is_some_and(|token| token.require_service_account);
    Ok(Plugin { name, patterns, keep, protocol, args, env, needs_pod })
}

/// A duration as Go writes it: `12h`, `1h30m`, `1.5s`, `0`.
pub(super) fn duration(text: &str) -> Option<Duration> {
    if text == "0" {
        return Some(Duration::ZERO);
    }
    let mut rest = text.strip_prefix('+').unwrap_or(text);
    let mut seconds = 0.0;
    while !rest.is_empty() {
        let (number, after) = rest.split_at(rest.find(|c: char| !c.is_ascii_digit() && c != '.')?);
        let end = after.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(after.len());
        let (unit, after) = after.split_at(end);
        let unit = match unit {
            "h" => 3600.0,
            "m" => 60.0,
            "s" => 1.0,
            "ms" => 1e-3,
            "us" | "µs" | "μs" => 1e-6,
            "ns" => 1e-9,
            _ => return None,
        };
        seconds += number.parse::<f64>().ok()? * unit;
        rest = after;
    }
    (!text.is_empty()).then(|| Duration::try_from_secs_f64(seconds).ok())?
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = r#"
apiVersion: kubelet.config.k8s.io/v1
kind: CredentialProviderConfig
providers:
  - name: ecr-credential-provider
    matchImages: ["*.dkr.ecr.*.amazonaws.com", "reg.io:5000/team"]
    defaultCacheDuration: "12h"
    apiVersion: credentialprovider.kubelet.k8s.io/v1
    args: [get-credentials, --verbose]
    env: [{name: AWS_PROFILE, value: hunter2}]
  - name: other
    matchImages: ["docker.io"]
    defaultCacheDuration: "0s"
    apiVersion: credentialprovider.kubelet.k8s.io/v1beta1
    tokenAttributes: {serviceAccountTokenAudience: a, requireServiceAccount: true}
"#;

    fn read(text: &str) -> Result<Vec<Plugin>, ConfigError> {
        parse(Path::new("/etc/plugins.yaml"), text)
    }

    #[test]
    fn the_kubelets_own_file_in_both_its_shapes() {
        let json = serde_json::to_string(&serde_saphyr::from_str::<serde_json::Value>(GOOD).unwrap()).unwrap();
        for text in [GOOD.to_owned(), json, GOOD.replace("k8s.io/v1\nkind", "k8s.io/v1beta1\nkind")] {
            let plugins = read(&text).unwrap();
            let (ecr, other) = (&plugins[0], &plugins[1]);
            assert_eq!((ecr.keep, other.keep), (Duration::from_secs(12 * 3600), Duration::ZERO));
            assert_eq!((ecr.args.len(), ecr.needs_pod, other.needs_pod), (2, false, true));
            for (image, ours) in [
                ("1234.dkr.ecr.eu-west-1.amazonaws.com/a", true),
                ("dkr.ecr.eu-west-1.amazonaws.com/a", false),
                ("reg.io:5000/team/a", true),
                ("reg.io:5000/other/a", false),
                ("reg.io/team/a", false),
                ("nginx", false),
            ] {
                assert_eq!(ecr.is_for(&image.parse().unwrap()), ours, "{image}");
            }
            assert!(other.is_for(&"nginx".parse().unwrap()));
            assert!(!format!("{plugins:?}").contains("hunter2"));
        }
    }

    #[test]
    fn what_the_kubelet_refuses_is_refused_and_named() {
        for (from, to, named) in [
            ("kind: CredentialProviderConfig", "kind: Pod", "apiVersion and kind"),
            ("config.k8s.io/v1\n", "config.k8s.io/v7\n", "apiVersion and kind"),
            ("name: ecr-credential-provider", "name: ../../bin/sh", "providers[0].name"),
            ("name: ecr-credential-provider", "name: ''", "providers[0].name"),
            ("name: other", "name: ecr-credential-provider", "providers[1].name"),
            ("\"docker.io\"", "", "providers[1].matchImages"),
            ("\"docker.io\"", "'/'", "providers[1].matchImages"),
            ("\"12h\"", "\"12 hours\"", "providers[0].defaultCacheDuration"),
            ("    defaultCacheDuration: \"12h\"\n", "", "providers[0].defaultCacheDuration"),
            ("k8s.io/v1beta1", "k8s.io/v2", "providers[1].apiVersion"),
            ("name: AWS_PROFILE", "name: A=B", "providers[0].env"),
            ("args: [get-credentials, --verbose]", "args: hunter2", "line"),
            ("providers:", "providers: hunter2 #", "line"),
        ] {
            assert!(GOOD.contains(from), "{from}");
            let error = read(&GOOD.replacen(from, to, 1)).unwrap_err().to_string();
            assert!(error.contains(named) && error.contains("plugins.yaml"), "{to}: {error}");
            assert!(!error.contains("hunter2"), "{error}");
        }
        for text in ["", "hunter2", "{", "[]"] {
            assert!(!read(text).unwrap_err().to_string().contains("hunter2"), "{text}");
        }
    }

    #[test]
    fn durations_as_go_writes_them() {
        for (text, millis) in
            [("12h", 43_200_000), ("1h30m", 5_400_000), ("1.5s", 1500), ("0", 0), ("0s", 0), ("5ms", 5)]
        {
            assert_eq!(duration(text), Some(Duration::from_millis(millis)), "{text}");
        }
        for text in ["", "12", "h", "12x", "-1s", "1..5s", "1s2", "9e9h", &format!("{}h", "9".repeat(400))] {
            assert_eq!(duration(text), None, "{text}");
        }
    }
}
