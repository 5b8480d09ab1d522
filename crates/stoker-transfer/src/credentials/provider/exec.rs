//! One run of a plugin.
//!
//! A plugin and an image come in; its answer goes out, or a sentence on what it did instead. It gets the request on its
//! standard input, one minute, and 1 MiB to answer; who drops the run ends the program. A secret never gets into a sentence:
//! of what a plugin complains only the first line is passed on, and nothing of its answer.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use serde::Deserialize;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _};
use tokio::process::{Child, Command};
use tokio::time::timeout;

use super::super::pattern::Pattern;
use super::Provided;
use super::config::{Plugin, duration};
use crate::login::Login;

const PATIENCE: Duration = Duration::from_secs(60);
const MOST_ANSWER: u64 = 1024 * 1024;
const MOST_COMPLAINT: u64 = 4096;
const MOST_LOGINS: usize = 1000;
/// Of a complaint: a longer line is cut, and a word longer than this may be a token.
const LONGEST_LINE: usize = 200;
const LONGEST_WORD: usize = 60;

/// What a plugin said.
#[derive(Debug)]
pub(super) struct PluginAnswer {
    pub(super) reach: Reach,
    /// How long it holds, where the plugin says so.
    pub(super) keep: Option<Duration>,
    pub(super) logins: Vec<Provided>,
}

/// How widely an answer holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub(super) enum Reach {
    Image,
    Registry,
    Global,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Response {
    api_version: String,
    kind: String,
    cache_key_type: Reach,
    cache_duration: Option<String>,
    #[serde(default)]
    auth: Option<BTreeMap<String, PluginLogin>>,
}

#[derive(Deserialize)]
struct PluginLogin {
    username: String,
    password: String,
}

/// Asks a plugin for the logins of an image (registry and repository).
pub(super) async fn run(plugin: &Plugin, program: &Path, image: &str) -> Result<PluginAnswer, String> {
    let name = &plugin.name;
    if plugin.needs_pod {
        return Err(format!(
            "credential provider {name} wants the service account of a pod; use a pull secret instead"
        ));
    }
    let said = match timeout(PATIENCE, talk(plugin, program, image)).await {
        Ok(said) => said,
        Err(_) => Err(format!("did not answer within {} s", PATIENCE.as_secs())),
    };
    let said = said.map_err(|what| format!("credential provider {name} {what}; the pull goes on without it"))?;
    read(plugin.protocol, &said).map_err(|why| {
        format!("credential provider {name} gave an answer that cannot be used ({why}); the pull goes on without it")
    })
}

/// Runs the program to its end; gives what it wrote.
async fn talk(plugin: &Plugin, program: &Path, image: &str) -> Result<Vec<u8>, String> {
    let mut child = Command::new(program)
        .args(&plugin.args)
        .envs(plugin.env.iter().map(|(name, value)| (name, value)))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .map_err(|e| format!("cannot be run ({e}), it should be {}", program.display()))?;
    let request =
        serde_json::json!({"kind": "CredentialProviderRequest", "apiVersion": plugin.protocol, "image": image});
    let (answer, complaint) = converse(&mut child, request.to_string()).await?;
    let status = child.wait().await.map_err(|e| format!("was lost ({e})"))?;
    if status.success() {
        return Ok(answer);
    }
    let how = status.code().map_or("was killed".to_owned(), |code| format!("failed with exit code {code}"));
    let complaint = first_line(&complaint);
    Err(if complaint.is_empty() { how } else { format!("{how}: {complaint}") })
}

/// Writes the request while it reads both outputs: a program that fills one of them would wait forever otherwise.
async fn converse(child: &mut Child, request: String) -> Result<(Vec<u8>, Vec<u8>), String> {
    let (stdin, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
    let write = async {
        if let Some(mut stdin) = stdin {
            // A plugin need not read it. Dropped at the end, so that it sees one.
            let _ = stdin.write_all(request.as_bytes()).await;
        }
        Ok(())
    };
    let answer = async {
        let (bytes, more) = take(stdout, MOST_ANSWER).await;
        if more { Err("wrote more than 1 MiB".to_owned()) } else { Ok(bytes) }
    };
    let complaint = async { Ok(take(stderr, MOST_COMPLAINT).await.0) };
    let ((), answer, complaint) = tokio::try_join!(write, answer, complaint)?;
    Ok((answer, complaint))
}

/// The first bytes of an output, and whether there were more; of complaints the rest is read and dropped.
async fn take(output: Option<impl AsyncRead + Unpin>, most: u64) -> (Vec<u8>, bool) {
    let mut bytes = Vec::new();
    let Some(mut output) = output else { return (bytes, false) };
    // What cannot be read is as good as not written.
    let _ = (&mut output).take(most).read_to_end(&mut bytes).await;
    if (bytes.len() as u64) < most {
        return (bytes, false);
    }
    if most == MOST_COMPLAINT {
        let _ = tokio::io::copy(&mut output, &mut tokio::io::sink()).await;
        return (bytes, true);
    }
    let more = output.read_u8().await.is_ok();
    (bytes, more)
}

fn first_line(complaint: &[u8]) -> String {
    let text = String::from_utf8_lossy(complaint);
    let line = text.lines().find(|line| !line.trim().is_empty()).unwrap_or("");
    let short = |word: &str| if word.chars().count() > LONGEST_WORD { "…".to_owned() } else { word.to_owned() };
    let words: Vec<String> = line.split_whitespace().map(short).collect();
    words.join(" ").chars().filter(|c| !c.is_control()).take(LONGEST_LINE).collect()
}

fn read(protocol: &str, answer: &[u8]) -> Result<PluginAnswer, String> {
    let response: Response = serde_json::from_slice(answer)
        .map_err(|e| format!("no CredentialProviderResponse, line {}, column {}", e.line(), e.column()))?;
    if response.kind != "CredentialProviderResponse" || response.api_version != protocol {
        return Err(format!("not the CredentialProviderResponse of {protocol}"));
    }
    let keep = match &response.cache_duration {
        Some(text) => Some(duration(text).ok_or("cacheDuration is no duration")?),
        None => None,
    };
    let auth = response.auth.unwrap_or_default();
    if auth.len() > MOST_LOGINS {
        return Err("more than 1000 logins".to_owned());
    }
    let provided = |(place, auth): (String, PluginLogin)| {
        let login = Login { username: auth.username, password: auth.password.into() };
        Some(Provided { pattern: Pattern::read(&place)?, login })
    };
    Ok(PluginAnswer { reach: response.cache_key_type, keep, logins: auth.into_iter().filter_map(provided).collect() })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const V1: &str = "credentialprovider.kubelet.k8s.io/v1";

    fn response(more: &str) -> String {
        format!(r#"{{"kind":"CredentialProviderResponse","apiVersion":"{V1}"{more}}}"#)
    }

    #[test]
    fn answers_and_what_is_none() {
        let text = response(
            r#","cacheKeyType":"Registry","cacheDuration":"6h","auth":{"*.a.io":{"username":"u","password":"hunter2"}}"#,
        );
        let answer = read(V1, text.as_bytes()).unwrap();
        assert_eq!(
            (answer.reach, answer.keep, answer.logins.len()),
            (Reach::Registry, Some(Duration::from_secs(21_600)), 1)
        );
        assert!(!format!("{answer:?}").contains("hunter2"));
        let empty = read(V1, response(r#","cacheKeyType":"Global","auth":null"#).as_bytes()).unwrap();
        assert_eq!((empty.keep, empty.logins.len()), (None, 0));
        for text in [
            String::new(),
            "hunter2".to_owned(),
            response(r#","cacheKeyType":"Node""#),
            response(""),
            response(r#","cacheKeyType":"Image","cacheDuration":"soon""#),
            response(r#","cacheKeyType":"Image","auth":{"a":{"username":"u","password":["hunter2"]}}"#),
            text.replace("k8s.io/v1", "k8s.io/v1beta1"),
            text.replace("Response", "Request"),
        ] {
            let why = read(V1, text.as_bytes()).unwrap_err();
            assert!(!why.contains("hunter2"), "{why}");
        }
    }

    #[test]
    fn of_a_complaint_one_short_line_is_told() {
        let token = "x".repeat(100);
        for (said, told) in [
            ("", ""),
            ("\n\n no role\nmore", "no role"),
            (&format!("token {token} refused"), "token … refused"),
            ("a\u{1b}[31m b", "a[31m b"),
        ] {
            assert_eq!(first_line(said.as_bytes()), told);
        }
        assert_eq!(first_line("ab ".repeat(1000).as_bytes()).chars().count(), LONGEST_LINE);
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn any_output_is_read_without_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let _ = read(V1, &bytes);
            first_line(&bytes);
        }
    }
}
