//! PAX records: `length key=value` lines that say more about an entry than its header can.

use std::collections::BTreeMap;

use super::super::error::Error;
use super::TarEntry;
use super::header::{self, Time};

/// What extended attributes are called.
const XATTR: &[u8] = b"SCHILY.xattr.";
/// The list of a sparse file's parts. The oldest kind of it comes as many records; they are joined under this key.
pub(super) const SPARSE_MAP: &[u8] = b"GNU.sparse.map";

/// Records by key; of two with one key the later counts.
#[derive(Default)]
pub(super) struct Records(BTreeMap<Vec<u8>, Vec<u8>>);

impl Records {
    /// A value, empty where there is none.
    pub(super) fn get(&self, key: &[u8]) -> &[u8] {
        self.0.get(key).map(Vec::as_slice).unwrap_or_default()
    }
}

/// Reads the records of one extended header.
pub(super) fn parse(mut bytes: &[u8], name: &[u8]) -> Result<Records, Error> {
    let wrong = || Error::archive(name, "its extended header is wrong");
    let (mut records, mut sparse) = (BTreeMap::new(), Vec::new());
    while !bytes.is_empty() {
        let (key, value, rest) = record(bytes).ok_or_else(wrong)?;
        bytes = rest;
        match key {
            b"GNU.sparse.offset" | b"GNU.sparse.numbytes" => {
                let offset = key == b"GNU.sparse.offset";
                if (sparse.len() % 2 == 0) != offset || value.contains(&b',') {
                    return Err(wrong());
                }
                sparse.push(value);
            }
            _ => {
                records.insert(key.to_vec(), value.to_vec());
            }
        }
    }
    if !sparse.is_empty() {
        records.insert(SPARSE_MAP.to_vec(), sparse.join(&b','));
    }
    Ok(Records(records))
}

/// The first record, and what comes behind it.
fn record(bytes: &[u8]) -> Option<(&[u8], &[u8], &[u8])> {
    let space = bytes.iter().position(|byte| *byte == b' ')?;
    let length = usize::try_from(decimal(&bytes[..space])?).ok().filter(|length| *length >= 5)?;
    let line = bytes.get(space + 1..length)?.strip_suffix(b"\n")?;
    let equals = line.iter().position(|byte| *byte == b'=')?;
    let (key, value) = (&line[..equals], &line[equals + 1..]);
    let checked = match key {
        b"path" | b"linkpath" | b"uname" | b"gname" => value,
        _ => key,
    };
    (!key.is_empty() && !checked.contains(&0)).then_some((key, value, &bytes[length..]))
}

/// Puts what the records say over what the header said. An empty value leaves the header's.
pub(super) fn merge(entry: &mut TarEntry, records: &Records) -> Result<(), Error> {
    let name = entry.name.clone();
    let wrong = || Error::archive(&name, "a number in its extended header is wrong");
    for (key, value) in &records.0 {
        if let Some(attribute) = key.strip_prefix(XATTR) {
            entry.xattrs.push((attribute.to_vec(), value.clone()));
            continue;
        }
        if value.is_empty() {
            continue;
        }
        match key.as_slice() {
            b"path" => entry.name = value.clone(),
            b"linkpath" => entry.link = value.clone(),
            b"uid" => entry.uid = header::low(decimal(value).ok_or_else(wrong)?),
            b"gid" => entry.gid = header::low(decimal(value).ok_or_else(wrong)?),
            b"atime" => entry.accessed = Some(time(value).ok_or_else(wrong)?),
            b"mtime" => entry.modified = time(value).ok_or_else(wrong)?,
            b"ctime" => drop(time(value).ok_or_else(wrong)?),
            b"size" => entry.size = decimal(value).ok_or_else(wrong)?,
            _ => {}
        }
    }
    Ok(())
}

/// A number with an optional sign.
pub(super) fn decimal(text: &[u8]) -> Option<i64> {
    str::from_utf8(text).ok()?.parse().ok()
}

/// Seconds with a fraction, of which nine digits count.
fn time(text: &[u8]) -> Option<Time> {
    let point = text.iter().position(|byte| *byte == b'.').unwrap_or(text.len());
    let seconds = decimal(&text[..point])?;
    let fraction = text.get(point + 1..).unwrap_or_default();
    if !fraction.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let digits = fraction.iter().copied().chain(std::iter::repeat(b'0')).take(9);
    let nanos = digits.fold(0, |nanos, digit| nanos * 10 + i64::from(digit - b'0'));
    Some(Time::new(seconds, if text.starts_with(b"-") { -nanos } else { nanos }))
}
