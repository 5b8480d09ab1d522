//! One block of 512 bytes as the header of an entry. The rules for numbers, checksums and formats are those of Go.

use super::super::error::Error;
use super::{BLOCK, EntryKind, TarEntry};

/// A moment as the archive says it, before it is made to fit a filesystem.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(in super::super) struct Time {
    nanos: i128,
}

impl Time {
    pub(super) fn new(seconds: i64, nanos: i64) -> Self {
        Self { nanos: i128::from(seconds) * 1_000_000_000 + i128::from(nanos) }
    }

    /// Seconds and nanoseconds. What 64 bits of nanoseconds since 1970 do not hold becomes 1970, as with containerd.
    pub(in super::super) fn bounded(self) -> (i64, i64) {
        let nanos = match i64::try_from(self.nanos) {
            Ok(nanos) if nanos >= 0 => nanos,
            _ => 0,
        };
        (nanos / 1_000_000_000, nanos % 1_000_000_000)
    }
}

/// A header whose checksum is right.
pub(super) struct Block([u8; BLOCK]);

#[derive(PartialEq, Eq)]
enum Format {
    V7,
    Ustar,
    Star,
    Gnu,
}

impl Block {
    pub(super) fn new(bytes: [u8; BLOCK]) -> Result<Self, Error> {
        let block = Self(bytes);
        let (mut unsigned, mut signed) = (0, 0);
        for (i, byte) in block.0.iter().enumerate() {
            let byte = if (148..156).contains(&i) { b' ' } else { *byte };
            unsigned += i64::from(byte);
            signed += i64::from(byte.cast_signed());
        }
        match octal(&block.0[148..156]) {
            Some(sum) if sum == unsigned || sum == signed => Ok(block),
            _ => Err(Error::archive(text(&block.0[..100]), "the header's checksum is wrong")),
        }
    }

    fn format(&self) -> Format {
        match (&self.0[257..263], &self.0[263..265], &self.0[508..512]) {
            (b"ustar\0", _, b"tar\0") => Format::Star,
            (b"ustar\0", _, _) => Format::Ustar,
            (b"ustar ", b" \0", _) => Format::Gnu,
            _ => Format::V7,
        }
    }

    /// What the block says by itself.
    pub(super) fn entry(&self) -> Result<TarEntry, Error> {
        let name = text(&self.0[..100]);
        let field = |from: usize, length: usize| {
            number(&self.0[from..from + length]).ok_or_else(|| Error::archive(name, "a number in its header is wrong"))
        };
        let mut entry = TarEntry {
            kind: kind(self.0[156]),
            name: name.to_vec(),
            link: text(&self.0[157..257]).to_vec(),
            size: field(124, 12)?,
            mode: low(field(100, 8)?) & 0o7777,
            uid: low(field(108, 8)?),
            gid: low(field(116, 8)?),
            modified: Time::new(field(136, 12)?, 0),
            accessed: None,
            device: (0, 0),
            xattrs: Vec::new(),
        };
        let format = self.format();
        if format == Format::V7 {
            return Ok(entry);
        }
        entry.device = (low(field(329, 8)?), low(field(337, 8)?));
        let prefix = match format {
            Format::Ustar => text(&self.0[345..500]),
            Format::Star => {
                entry.accessed = Some(Time::new(field(476, 12)?, 0));
                field(488, 12)?;
                text(&self.0[345..476])
            }
            _ => self.gnu_times(&mut entry),
        };
        if !prefix.is_empty() {
            entry.name = [prefix, b"/", name].concat();
        }
        Ok(entry)
    }

    /// GNU has times where ustar has a prefix. Old writers in Go put a prefix there all the same: then that is given.
    fn gnu_times(&self, entry: &mut TarEntry) -> &[u8] {
        let time = |from: usize| match self.0[from] {
            0 => Some(None),
            _ => number(&self.0[from..from + 12]).map(|seconds| Some(Time::new(seconds, 0))),
        };
        match (time(345), time(357)) {
            (Some(accessed), Some(_)) => entry.accessed = accessed,
            _ => {
                let prefix = text(&self.0[345..500]);
                if prefix.is_ascii() {
                    return prefix;
                }
            }
        }
        b""
    }
}

fn kind(flag: u8) -> EntryKind {
    match flag {
        b'0' => EntryKind::File,
        b'1' => EntryKind::Link,
        b'2' => EntryKind::Symlink,
        b'3' => EntryKind::Char,
        b'4' => EntryKind::Block,
        b'5' => EntryKind::Directory,
        b'6' => EntryKind::Fifo,
        b'g' => EntryKind::Global,
        other => EntryKind::Other(other),
    }
}

/// Up to the first NUL.
pub(super) fn text(bytes: &[u8]) -> &[u8] {
    bytes.split(|byte| *byte == 0).next().unwrap_or_default()
}

/// The kernel takes the low 32 bits of owners, devices and modes; so does Go.
pub(super) fn low(number: i64) -> u32 {
    number.cast_unsigned() as u32
}

/// Octal digits, or a big-endian number where the first bit is set.
fn number(field: &[u8]) -> Option<i64> {
    let first = *field.first()?;
    if first & 0x80 == 0 {
        return octal(field);
    }
    let negative = first & 0x40 != 0;
    let flip = if negative { 0xff } else { 0 };
    let mut value: u64 = 0;
    for (i, byte) in field.iter().enumerate() {
        let byte = (byte ^ flip) & if i == 0 { 0x7f } else { 0xff };
        if value >> 56 > 0 {
            return None;
        }
        value = value << 8 | u64::from(byte);
    }
    let value = i64::try_from(value).ok()?;
    Some(if negative { !value } else { value })
}

fn octal(field: &[u8]) -> Option<i64> {
    let digit = |byte: &u8| !matches!(byte, b' ' | 0);
    let Some(from) = field.iter().position(digit) else { return Some(0) };
    let to = field.iter().rposition(digit).unwrap_or(from);
    text(&field[from..=to]).iter().try_fold(0, |value: i64, digit| match digit {
        b'0'..=b'7' => Some(value << 3 | i64::from(digit - b'0')),
        _ => None,
    })
}
