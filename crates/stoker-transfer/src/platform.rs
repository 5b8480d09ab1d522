//! Which machine an image is for.
//!
//! A node's platform and the platforms an index offers come in; how well one fits goes out. The rules are
//! containerd's, so that we bring what the kubelet would have pulled. It never looks at images.

use std::fmt;
use std::str::FromStr;

/// Why a text is not a platform.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a platform; write it like linux/amd64 or linux/arm/v7")]
pub struct InvalidPlatform(String);

/// Operating system, architecture and, for some, the architecture's variant.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Platform {
    /// `linux`, `windows` …
    pub os: String,
    /// The name that Go and OCI use: `amd64`, `arm64`, `arm` …
    pub architecture: String,
    /// `v8`, `v7` …; `None` where it is the usual one.
    pub variant: Option<String>,
}

impl Platform {
    /// The platform in its shortest form: other spellings of an architecture and usual variants go.
    pub fn new(os: &str, architecture: &str, variant: Option<&str>) -> Self {
        let (os, architecture) = (os.to_ascii_lowercase(), architecture.to_ascii_lowercase());
        let variant = variant.filter(|v| !v.is_empty()).map(str::to_ascii_lowercase);
        let (architecture, variant) = match (architecture.as_str(), variant.as_deref()) {
            ("x86_64" | "x86-64" | "amd64", None | Some("v1")) => ("amd64", None),
            ("x86_64" | "x86-64" | "amd64", variant) => ("amd64", variant),
            ("aarch64" | "arm64", None | Some("8" | "v8")) => ("arm64", None),
            ("aarch64", variant) => ("arm64", variant),
            ("armhf", _) => ("arm", Some("v7")),
            ("armel", _) => ("arm", Some("v6")),
            ("arm", None | Some("7")) => ("arm", Some("v7")),
            ("arm", Some("5")) => ("arm", Some("v5")),
            ("arm", Some("6")) => ("arm", Some("v6")),
            ("arm", Some("8")) => ("arm", Some("v8")),
            ("i386" | "i486" | "i586" | "i686" | "x86" | "386", _) => ("386", None),
            (other, variant) => (other, variant),
        };
        Self { os, architecture: architecture.to_owned(), variant: variant.map(str::to_owned) }
    }

    /// The platform that this program was built for.
    pub fn host() -> Self {
        let os = if std::env::consts::OS == "macos" { "darwin" } else { std::env::consts::OS };
        let architecture = match std::env::consts::ARCH {
            "powerpc64" if cfg!(target_endian = "little") => "ppc64le",
            "loongarch64" => "loong64",
            other => other,
        };
        Self::new(os, architecture, None)
    }

    /// How well an image for `offered` runs here: 0 is exactly right, more is a step down, `None` is not at all.
    pub fn rank(&self, offered: &Platform) -> Option<u32> {
        if self.os != offered.os {
            return None;
        }
        let level = |variant: &Option<String>, usual: u32| match variant {
            None => Some(usual),
            Some(variant) => variant.strip_prefix('v')?.parse().ok(),
        };
        let (usual, lowest) = match self.architecture.as_str() {
            "arm" => (7, 5),
            "arm64" => (8, 8),
            "amd64" => (1, 1),
            _ => return (self == offered).then_some(0),
        };
        let here = level(&self.variant, usual);
        if self.architecture == offered.architecture {
            return match (here, level(&offered.variant, usual)) {
                (Some(here), Some(there)) if (lowest..=here).contains(&there) => Some(here - there),
                _ => (self.variant == offered.variant).then_some(0),
            };
        }
        // A 64 bit ARM machine runs 32 bit images, but takes any of its own first.
        match (self.architecture.as_str(), offered.architecture.as_str()) {
            ("arm64", "arm") => level(&offered.variant, 7).filter(|v| (5..=8).contains(v)).map(|v| 100 + (8 - v)),
            _ => None,
        }
    }
}

impl fmt::Display for Platform {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.os, self.architecture)?;
        match &self.variant {
            Some(variant) => write!(f, "/{variant}"),
            None => Ok(()),
        }
    }
}

impl FromStr for Platform {
    type Err = InvalidPlatform;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let word = |part: &&str| {
            !part.is_empty()
                && part.len() <= 32
                && part.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b))
        };
        let parts: Vec<&str> = text.split('/').take(4).collect();
        match parts.as_slice() {
            all if !all.iter().all(word) => Err(InvalidPlatform(text.chars().take(100).collect())),
            [os, architecture] => Ok(Self::new(os, architecture, None)),
            [os, architecture, variant] => Ok(Self::new(os, architecture, Some(variant))),
            _ => Err(InvalidPlatform(text.chars().take(100).collect())),
        }
    }
}

impl From<&oci_spec::image::Platform> for Platform {
    fn from(platform: &oci_spec::image::Platform) -> Self {
        Self::new(&platform.os().to_string(), &platform.architecture().to_string(), platform.variant().as_deref())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn platform(text: &str) -> Platform {
        text.parse().unwrap()
    }

    #[test]
    fn spellings_of_one_machine_are_one_platform() {
        assert_eq!(platform("linux/arm64/v8"), platform("linux/aarch64"));
        assert_eq!(platform("linux/arm"), platform("linux/arm/v7"));
        assert_eq!(platform("linux/x86_64").to_string(), "linux/amd64");
        assert_eq!(platform("linux/arm/v6").to_string(), "linux/arm/v6");
        for wrong in ["", "linux", "linux/", "/amd64", "linux/amd64/v1/x", "linux/am d64"] {
            assert!(wrong.parse::<Platform>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn what_runs_where() {
        for (here, offered, rank) in [
            ("linux/amd64", "linux/amd64", Some(0)),
            ("linux/amd64", "linux/amd64/v3", None),
            ("linux/amd64/v3", "linux/amd64", Some(2)),
            ("linux/amd64", "windows/amd64", None),
            ("linux/amd64", "unknown/unknown", None),
            ("linux/arm64", "linux/arm64/v8", Some(0)),
            ("linux/arm64/v9", "linux/arm64", Some(1)),
            ("linux/arm64", "linux/arm/v7", Some(101)),
            ("linux/arm/v7", "linux/arm/v6", Some(1)),
            ("linux/arm/v6", "linux/arm/v7", None),
            ("linux/arm/v7", "linux/arm64", None),
            ("linux/s390x", "linux/s390x", Some(0)),
        ] {
            assert_eq!(platform(here).rank(&platform(offered)), rank, "{offered} on {here}");
        }
    }
}
