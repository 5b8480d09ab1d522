//! Whether something fits on a disk: arithmetic alone.

use std::fmt;

use crate::space::Space;

/// What something takes of a disk.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DiskAmount {
    /// Its bytes.
    pub bytes: u64,
    /// Its inodes.
    pub inodes: u64,
}

impl DiskAmount {
    pub(crate) fn plus(self, other: Self) -> Self {
        let (bytes, inodes) = (self.bytes.saturating_add(other.bytes), self.inodes.saturating_add(other.inodes));
        Self { bytes, inodes }
    }

    pub(crate) fn minus(self, other: Self) -> Self {
        let (bytes, inodes) = (self.bytes.saturating_sub(other.bytes), self.inodes.saturating_sub(other.inodes));
        Self { bytes, inodes }
    }

    /// A whole step of what is needed, or more; none of what is not needed.
    pub(super) fn rounded_up(self, step: Self) -> Self {
        let rounded = |need: u64, step: u64| if need == 0 { 0 } else { need.max(step) };
        Self { bytes: rounded(self.bytes, step.bytes), inodes: rounded(self.inodes, step.inodes) }
    }

    /// This, and the other's where this has none.
    pub(super) fn or(self, other: Self) -> Self {
        let or = |this: u64, other: u64| if this == 0 { other } else { this };
        Self { bytes: or(self.bytes, other.bytes), inodes: or(self.inodes, other.inodes) }
    }

    pub(super) fn min(self, other: Self) -> Self {
        Self { bytes: self.bytes.min(other.bytes), inodes: self.inodes.min(other.inodes) }
    }

    pub(super) fn within(self, other: Self) -> bool {
        self.bytes <= other.bytes && self.inodes <= other.inodes
    }
}

/// Why something does not fit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Short {
    /// What is short: bytes, or inodes.
    pub of: Unit,
    /// How much is needed.
    pub need: u64,
    /// How much is free.
    pub free: u64,
    /// How much others have reserved of that.
    pub reserved: u64,
    /// How full the disk would be, in percent.
    pub full: u64,
    /// How full it may be.
    pub limit: u8,
    /// Whether it would fit if nobody else had reserved anything.
    pub later: bool,
    /// On which disk.
    pub device: u64,
}

/// What a disk has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    /// Bytes.
    Bytes,
    /// Places for files.
    Inodes,
}

impl fmt::Display for Short {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { need, free, reserved, full, limit, .. } = *self;
        let amount = |count: u64| match self.of {
            Unit::Bytes => format!("{}.{} MiB", count >> 20, ((count % (1 << 20)) * 10) >> 20),
            Unit::Inodes => format!("{count} inodes"),
        };
        write!(
            f,
            "it takes {} more, which would fill the disk to {full} %, past the limit of {limit} %",
            amount(need)
        )?;
        write!(f, " ({} free", amount(free))?;
        if reserved > 0 {
            write!(f, ", {} of that reserved by other pulls", amount(reserved))?;
        }
        f.write_str(")")
    }
}

/// How much of so much may be used.
fn allowed(total: u64, percent: u8) -> u128 {
    u128::from(total) * u128::from(percent) / 100
}

/// The bytes that may still be written to a disk.
pub(super) fn left(space: &Space, percent: u8) -> u64 {
    let used = u128::from(space.total.saturating_sub(space.free));
    u64::try_from(allowed(space.total, percent).saturating_sub(used)).unwrap_or(u64::MAX)
}

/// Whether `need` fits beside what is used and what others have `reserved`. What needs nothing always does.
pub(super) fn fit(space: Space, percent: u8, reserved: DiskAmount, need: DiskAmount) -> Result<(), Short> {
    // What is unpacked is an estimate. Who allows all of a disk is told when it is really full.
    if percent >= 100 {
        return Ok(());
    }
    let bytes = (Unit::Bytes, space.total, space.free, reserved.bytes, need.bytes);
    let inodes = (Unit::Inodes, space.inodes, space.free_inodes, reserved.inodes, need.inodes);
    for (of, total, free, reserved, need) in [bytes, inodes] {
        if total == 0 || need == 0 {
            continue;
        }
        let allowed = allowed(total, percent);
        let alone = u128::from(total.saturating_sub(free)) + u128::from(need);
        let beside = alone + u128::from(reserved);
        if beside > allowed {
            let full = u64::try_from(beside * 100 / u128::from(total)).unwrap_or(u64::MAX);
            let (later, device) = (alone <= allowed, space.device);
            return Err(Short { of, need, free, reserved, full, limit: percent, later, device });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_is_never_filled_past_its_limit() {
        // Total, free, reserved by others, needed; how full it would be, and whether it fits when the others are done.
        for (total, free, reserved, need, expected) in [
            (100, 50, 0, 30, None),
            (100, 50, 0, 31, Some((81, false))),
            (100, 50, 10, 20, None),
            (100, 50, 11, 20, Some((81, true))),
            (100, 50, 1000, 20, Some((1070, true))),
            (100, 50, 10, 31, Some((91, false))),
            (100, 10, 0, 0, None),
            (100, 10, 0, 1, Some((91, false))),
            (0, 0, 0, 5, None),
            (u64::MAX, 0, u64::MAX, u64::MAX, Some((300, false))),
        ] {
            let space = Space { total, free, ..Space::default() };
            let amount = |bytes| DiskAmount { bytes, inodes: 1 };
            let short = fit(space, 80, amount(reserved), amount(need)).err();
            assert_eq!(short.map(|short| (short.full, short.later)), expected, "{total} {free} {reserved} {need}");
            assert_eq!(fit(space, 100, amount(reserved), amount(need)), Ok(()), "all of it is allowed");
            // The same for inodes.
            let space = Space { inodes: total, free_inodes: free, ..Space::default() };
            let amount = |inodes| DiskAmount { bytes: 1, inodes };
            let short = fit(space, 80, amount(reserved), amount(need)).err();
            assert_eq!(short.map(|short| (short.full, short.later)), expected, "{total} {free} {reserved} {need}");
        }
    }

    #[test]
    fn a_shortage_says_what_is_needed_and_what_is_free() {
        let space = Space { total: 100 << 20, free: 50 << 20, inodes: 100, free_inodes: 1, device: 1 };
        let amount = |bytes, inodes| DiskAmount { bytes, inodes };
        let told = fit(space, 80, amount(10 << 20, 0), amount(31 << 20, 0)).unwrap_err().to_string();
        let expected = "it takes 31.0 MiB more, which would fill the disk to 91 %, past the limit of 80 % (50.0 MiB free, \
                        10.0 MiB of that reserved by other pulls)";
        assert_eq!(told, expected);
        let told = fit(space, 80, amount(0, 0), amount(0, 3)).unwrap_err().to_string();
        assert_eq!(
            told,
            "it takes 3 inodes more, which would fill the disk to 102 %, past the limit of 80 % (1 inodes free)"
        );
    }
}
