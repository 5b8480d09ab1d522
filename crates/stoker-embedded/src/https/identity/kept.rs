//! An identity that outlives the process, so that a kubeconfig stays valid. In: a file. Out: the secrets in it; or new ones,
//! written there, where there are none or they are near their end. The file is for its owner only and never half-written.

use super::{Secrets, ServerError, Token};
use jiff::civil::Date;
use rcgen::KeyPair;
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

/// The form of the file; a later one is refused.
const FORMAT: u32 = 1;
/// New secrets are made this long before the old ones end.
const RENEW_DAYS: i64 = 180;

/// The file.
#[derive(Serialize, Deserialize)]
struct Kept {
    format: u32,
    certificate: String,
    key: String,
    token: String,
    expires: Date,
}

/// Reads the secrets, or makes and writes them.
pub(crate) fn load(file: &Path, today: Date) -> Result<Secrets, ServerError> {
    let wrong = |why: String| ServerError::Identity { path: file.to_owned(), why };
    match std::fs::read(file) {
        Ok(bytes) => {
            let secrets = read(&bytes).map_err(wrong)?;
            if secrets.expires > today.saturating_add(jiff::Span::new().days(RENEW_DAYS)) {
                return Ok(secrets);
            }
            tracing::warn!(file = %file.display(), "the identity is near its end: a new one is made; kubeconfigs written before stop working");
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(wrong(error.to_string())),
    }
    let secrets = Secrets::new(today)?;
    write(file, &secrets).map_err(|error| wrong(error.to_string()))?;
    Ok(secrets)
}

/// Says what is wrong, never what is there.
fn read(bytes: &[u8]) -> Result<Secrets, String> {
    let kept: Kept = serde_json::from_slice(bytes)
        .map_err(|e| format!("it is no identity (line {}, column {})", e.line(), e.column()))?;
    if kept.format > FORMAT {
        return Err(format!("its format {} is newer than this version knows", kept.format));
    }
    let key = KeyPair::from_pem(&kept.key).map_err(|_| "its key cannot be read".to_owned())?;
    // Never the empty token, which anyone could show.
    if kept.token.len() < 32 {
        return Err("its token is too short".to_owned());
    }
    Ok(Secrets { certificate: kept.certificate, key, expires: kept.expires, token: Token(kept.token.into()) })
}

fn write(file: &Path, secrets: &Secrets) -> io::Result<()> {
    let kept = Kept {
        format: FORMAT,
        certificate: secrets.certificate.clone(),
        key: secrets.key.serialize_pem(),
        token: secrets.token.0.to_string(),
        expires: secrets.expires,
    };
    let part = PathBuf::from(format!("{}.part", file.display()));
    match std::fs::remove_file(&part) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut out = File::options().create_new(true).write(true).mode(0o600).open(&part)?;
    out.write_all(&serde_json::to_vec_pretty(&kept)?)?;
    out.sync_all()?;
    std::fs::rename(&part, file)?;
    let parent = file.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    File::open(parent)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_last_until_they_are_near_their_end() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("identity.json");
        let today: Date = "2026-11-15".parse().unwrap();
        let first = load(&file, today).unwrap();
        let token = |secrets: &Secrets| secrets.token.0.to_string();
        let later: Date = "2036-01-01".parse().unwrap();
        let again = load(&file, later).unwrap();
        assert_eq!((token(&again), again.certificate), (token(&first), first.certificate.clone()));
        let renewed = load(&file, "2036-10-01".parse().unwrap()).unwrap();
        assert_ne!(token(&renewed), token(&first));
        assert_eq!(token(&load(&file, later).unwrap()), token(&renewed));
    }

    #[test]
    fn a_wrong_file_is_named_and_shows_no_secret() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("identity.json");
        let today: Date = "2026-11-15".parse().unwrap();
        let token = load(&file, today).unwrap().token.0.to_string();
        let good = std::fs::read_to_string(&file).unwrap();
        for (bad, why) in [
            (good.replace("\"format\": 1", "\"format\": 2"), "newer"),
            (good.replace("-----BEGIN PRIVATE KEY-----", ""), "key"),
            (good.replace(&token, ""), "token"),
            (good[..good.len() / 2].to_owned(), "no identity"),
        ] {
            std::fs::write(&file, bad).unwrap();
            let error = load(&file, today).map(drop).unwrap_err().to_string();
            assert!(error.contains(why) && error.contains(file.to_str().unwrap()), "{error}");
            assert!(error.contains("remove it") && !error.contains(&token), "{error}");
        }
    }
}
