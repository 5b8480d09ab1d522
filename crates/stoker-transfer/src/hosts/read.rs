//! Files of settings, read with a bound.
//!
//! A path comes in, its bytes go out. No setting is larger than the bound; a device or a log that somebody linked is.

use std::io::Read as _;
use std::path::Path;

use super::Error;

const MOST: u64 = 1024 * 1024;

pub(super) fn bytes(path: &Path) -> Result<Vec<u8>, Error> {
    let failed = |cause: String| Error::Unreadable { file: path.to_owned(), cause };
    let file = std::fs::File::open(path).map_err(|e| failed(e.to_string()))?;
    let mut bytes = Vec::new();
    file.take(MOST + 1).read_to_end(&mut bytes).map_err(|e| failed(e.to_string()))?;
    if bytes.len() as u64 > MOST {
        return Err(failed("it is larger than 1 MiB".to_owned()));
    }
    Ok(bytes)
}

pub(super) fn text(path: &Path) -> Result<String, Error> {
    let not_text = |_| Error::Unreadable { file: path.to_owned(), cause: "it is no UTF-8 text".to_owned() };
    String::from_utf8(bytes(path)?).map_err(not_text)
}
