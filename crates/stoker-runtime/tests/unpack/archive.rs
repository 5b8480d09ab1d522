//! Archives made by hand, the odd ones too.

use std::io::Write as _;

/// A header that is told its fields, and what goes before and behind it.
#[derive(Debug)]
pub(crate) struct Item {
    kind: u8,
    name: Vec<u8>,
    link: Vec<u8>,
    mode: u32,
    owner: (u64, u64),
    time: u64,
    device: (u32, u32),
    data: Vec<u8>,
    size: Option<u64>,
    pax: Vec<(String, Vec<u8>)>,
    gnu: bool,
    raw: Option<fn(&mut tar::Header)>,
}

/// All entries get this time where nothing else is said: long ago, so that it differs from now.
pub(crate) const TIME: u64 = 1_500_000_000;

fn item(kind: u8, name: impl AsRef<[u8]>, mode: u32) -> Item {
    Item {
        kind,
        name: name.as_ref().to_vec(),
        link: Vec::new(),
        mode,
        owner: (0, 0),
        time: TIME,
        device: (0, 0),
        data: Vec::new(),
        size: None,
        pax: Vec::new(),
        gnu: false,
        raw: None,
    }
}

pub(crate) fn dir(name: impl AsRef<[u8]>) -> Item {
    item(b'5', name, 0o755)
}

pub(crate) fn file(name: impl AsRef<[u8]>, data: impl AsRef<[u8]>) -> Item {
    Item { data: data.as_ref().to_vec(), ..item(b'0', name, 0o644) }
}

pub(crate) fn symlink(name: impl AsRef<[u8]>, to: impl AsRef<[u8]>) -> Item {
    Item { link: to.as_ref().to_vec(), ..item(b'2', name, 0o777) }
}

pub(crate) fn hardlink(name: impl AsRef<[u8]>, to: impl AsRef<[u8]>) -> Item {
    Item { link: to.as_ref().to_vec(), ..item(b'1', name, 0o644) }
}

pub(crate) fn of_kind(kind: u8, name: impl AsRef<[u8]>) -> Item {
    item(kind, name, 0o640)
}

impl Item {
    pub(crate) fn mode(self, mode: u32) -> Self {
        Self { mode, ..self }
    }

    pub(crate) fn owner(self, uid: u64, gid: u64) -> Self {
        Self { owner: (uid, gid), ..self }
    }

    pub(crate) fn time(self, time: u64) -> Self {
        Self { time, ..self }
    }

    pub(crate) fn device(self, major: u32, minor: u32) -> Self {
        Self { device: (major, minor), ..self }
    }

    /// A size that is not that of the data.
    pub(crate) fn size(self, size: u64) -> Self {
        Self { size: Some(size), ..self }
    }

    pub(crate) fn pax(mut self, key: &str, value: impl AsRef<[u8]>) -> Self {
        self.pax.push((key.into(), value.as_ref().to_vec()));
        self
    }

    pub(crate) fn xattr(self, key: &str, value: impl AsRef<[u8]>) -> Self {
        self.pax(&format!("SCHILY.xattr.{key}"), value)
    }

    /// A GNU header, with long names in entries of their own.
    pub(crate) fn gnu(self) -> Self {
        Self { gnu: true, ..self }
    }

    /// The last word on the header; the checksum is set after it.
    pub(crate) fn raw(self, raw: fn(&mut tar::Header)) -> Self {
        Self { raw: Some(raw), ..self }
    }

    fn write(&self, out: &mut Vec<u8>) {
        let mut pax = self.pax.clone();
        for (field, key, kind) in [(&self.name, "path", b'L'), (&self.link, "linkpath", b'K')] {
            if field.len() > 100 && self.gnu {
                block(out, kind, b"././@LongLink", &[field.as_slice(), b"\0"].concat());
            } else if field.len() > 100 {
                pax.push((key.into(), field.clone()));
            }
        }
        if !pax.is_empty() {
            block(out, b'x', b"PaxHeaders/x", &records(&pax));
        }
        let mut header = if self.gnu { tar::Header::new_gnu() } else { tar::Header::new_ustar() };
        put(&mut header.as_old_mut().name, &self.name);
        put(&mut header.as_old_mut().linkname, &self.link);
        header.as_old_mut().linkflag = [self.kind];
        header.set_mode(self.mode);
        header.set_uid(self.owner.0);
        header.set_gid(self.owner.1);
        header.set_mtime(self.time);
        header.set_size(self.size.unwrap_or(self.data.len() as u64));
        if self.device != (0, 0) {
            header.set_device_major(self.device.0).unwrap();
            header.set_device_minor(self.device.1).unwrap();
        }
        if let Some(raw) = self.raw {
            raw(&mut header);
        }
        header.set_cksum();
        out.extend_from_slice(header.as_bytes());
        pad(out, &self.data);
    }
}

fn put(field: &mut [u8; 100], value: &[u8]) {
    let length = value.len().min(100);
    field[..length].copy_from_slice(&value[..length]);
}

fn pad(out: &mut Vec<u8>, data: &[u8]) {
    out.extend_from_slice(data);
    out.resize(out.len().next_multiple_of(512), 0);
}

fn block(out: &mut Vec<u8>, kind: u8, name: &[u8], data: &[u8]) {
    let mut header = tar::Header::new_ustar();
    put(&mut header.as_old_mut().name, name);
    header.as_old_mut().linkflag = [kind];
    header.set_mode(0o644);
    header.set_size(data.len() as u64);
    header.set_cksum();
    out.extend_from_slice(header.as_bytes());
    pad(out, data);
}

/// PAX records: each line starts with its own length.
pub(crate) fn records(pairs: &[(String, Vec<u8>)]) -> Vec<u8> {
    let mut out = Vec::new();
    for (key, value) in pairs {
        let rest = key.len() + value.len() + 3;
        let mut length = rest + 1;
        while length != rest + length.to_string().len() {
            length = rest + length.to_string().len();
        }
        write!(out, "{length} {key}=").unwrap();
        out.extend_from_slice(value);
        out.push(b'\n');
    }
    out
}

/// The entries one after the other, without an end.
pub(crate) fn open_ended(items: &[Item]) -> Vec<u8> {
    let mut out = Vec::new();
    for item in items {
        item.write(&mut out);
    }
    out
}

/// A whole archive.
pub(crate) fn archive(items: &[Item]) -> Vec<u8> {
    let mut out = open_ended(items);
    out.resize(out.len() + 1024, 0);
    out
}
