//! The disk guard: a pull reserves what it will put onto the disks before it begins, so that all pulls of the node together never
//! fill a disk past its limit. The kubelet's collector starts at 85 % and would take what we brought.

use std::path::PathBuf;

use stoker_core::human::bytes;
use stoker_core::step::Failure;
use stoker_core::{Reason, WAITING_FOR_ROOM};
use stoker_runtime::room::{DiskAmount, Hold, Purse, Room, Short, Unit, Unwritten};
use stoker_runtime::{Runtime, space};

use crate::leftovers::Leftovers;
use crate::meter::Meter;

/// The bytes of unpacked files for which one inode is reserved. Images have one for 20 to 40 KiB.
const BYTES_OF_A_FILE: u64 = 32 << 10;

/// Something that will be written, and where.
pub(crate) enum DiskNeed {
    /// Into the spool, for a while.
    Spool(Unwritten),
    /// Into the image store, as it is.
    Images(Unwritten),
    /// Into the image store, unpacked.
    Unpacked(DiskAmount),
}

/// What a pull has reserved, one for each of its needs.
pub(crate) enum Reserved {
    Hold(Hold),
    Purse(Purse),
}

impl Reserved {
    /// For what is written as it is.
    pub(crate) fn hold(self) -> Option<Hold> {
        match self {
            Self::Hold(hold) => Some(hold),
            Self::Purse(_) => None,
        }
    }

    /// For what is unpacked.
    pub(crate) fn purse(self) -> Option<Purse> {
        match self {
            Self::Purse(purse) => Some(purse),
            Self::Hold(_) => None,
        }
    }
}

/// Reserves room on the disks before an image is begun.
#[derive(Clone)]
pub(crate) struct DiskGuard {
    pub(crate) runtime: Runtime,
    pub(crate) spool: PathBuf,
    /// What all pulls of the node have reserved.
    pub(crate) room: Room,
    /// What goes first where there is no room.
    pub(crate) leftovers: Leftovers,
}

impl DiskGuard {
    /// Reserves all of it, also without what orders that were taken back have left. Where others have reserved what it
    /// needs, it waits until one of them is done or yields, and gives `None`: by then something else may be missing.
    pub(crate) async fn admit(
        &self,
        image: &str,
        needs: impl Fn() -> Vec<DiskNeed>,
        meter: &Meter,
    ) -> Result<Option<Vec<Reserved>>, Failure> {
        let mut ends = self.room.ends();
        let mut reserved = self.reserve(needs()).await;
        if reserved.is_err() && self.leftovers.clear().await {
            reserved = self.reserve(needs()).await;
        }
        match reserved {
            Ok(reserved) => {
                if meter.waits_for_room() {
                    meter.goes_on();
                }
                Ok(Some(reserved))
            }
            Err((disk, short)) if short.later => {
                tracing::info!(image, "waits for room on {disk}: {short}");
                meter.waits(no_room(image, disk, short));
                // The room outlives every pull.
                let _ = ends.changed().await;
                // It still waits: what has ended may not be enough.
                Ok(None)
            }
            Err((disk, short)) => Err(no_room(image, disk, short)),
        }
    }

    /// Where it does not fit, it says on which disk.
    async fn reserve(&self, needs: Vec<DiskNeed>) -> Result<Vec<Reserved>, (&'static str, Short)> {
        let (images, spool) = (self.runtime.place().await.ok().flatten(), self.spool.clone());
        let room = self.room.clone();
        let work = move || {
            let place = |need: &DiskNeed| match need {
                DiskNeed::Spool(_) => Some(spool.clone()),
                DiskNeed::Images(_) | DiskNeed::Unpacked(_) => images.clone(),
            };
            let estimates: Vec<Option<DiskAmount>> = needs.iter().map(DiskNeed::estimate).collect();
            let items = needs.into_iter().map(|need| (place(&need), need.left())).collect();
            let reserved = room.reserve(items).map_err(|short| {
                let is_short = |place: &PathBuf| space::look(place).is_some_and(|space| space.device == short.device);
                let of_images = images.as_ref().is_some_and(is_short);
                (if of_images { "the disk of the images" } else { "the disk of the spool" }, short)
            });
            let reserved = reserved?.into_iter().zip(estimates).map(|(hold, estimate)| match estimate {
                Some(estimate) => Reserved::Purse(Purse::new(hold, images.clone(), estimate)),
                None => Reserved::Hold(hold),
            });
            Ok(reserved.collect())
        };
        // A thread that breaks off reserves nothing, and the pull goes on as if the disk could not be seen.
        tokio::task::spawn_blocking(work).await.unwrap_or(Ok(Vec::new()))
    }

    /// Whether spool and image store are on two disks.
    pub(crate) async fn apart(&self) -> bool {
        let images = self.runtime.space().await.ok().flatten();
        let spool = space::of(self.spool.clone()).await;
        matches!((images, spool), (Some(images), Some(spool)) if images.device != spool.device)
    }

    /// Ends with a failure when the disk of the images is fuller than it may be, for runtimes that fill it by themselves.
    pub(crate) async fn overflows(&self, image: &str) -> Failure {
        let place = self.runtime.place().await.ok().flatten();
        let Short { free, limit, .. } = self.room.overflows(place.as_deref()).await;
        failure(format!(
            "{image}: the runtime unpacks more than the disk of the images has room for, up to the limit of {limit} % ({} are \
             free); its pull was cancelled. Free some space, or raise the agent's --max-disk",
            bytes(free)
        ))
    }

    /// What a person should know where the disk of the images is fuller than it may be after a runtime has pulled by itself. The image
    /// stays: it is whole, the next pull finds no room, and to remove it would take it from pods and other names that use it already.
    pub(crate) async fn overflowed(&self, image: &str) -> Option<String> {
        let place = self.runtime.place().await.ok().flatten();
        let Short { free, limit, .. } = self.room.overflowed(place.as_deref()).await?;
        let note = format!(
            "the runtime has pulled it, and the disk of the images is past the limit of {limit} % now ({} are free); free some space, or \
             raise the agent's --max-disk",
            bytes(free)
        );
        tracing::warn!(image, "{note}");
        Some(note)
    }
}

impl DiskNeed {
    fn estimate(&self) -> Option<DiskAmount> {
        match self {
            Self::Unpacked(estimate) => Some(*estimate),
            Self::Spool(_) | Self::Images(_) => None,
        }
    }

    fn left(self) -> Unwritten {
        match self {
            Self::Spool(left) | Self::Images(left) => left,
            Self::Unpacked(estimate) => Unwritten::Amount(estimate),
        }
    }
}

/// An image that does not fit, now or at all.
fn no_room(image: &str, disk: &str, short: Short) -> Failure {
    let amount = |count: u64| match short.of {
        Unit::Bytes => bytes(count),
        Unit::Inodes => format!("{count} inodes"),
    };
    let Short { full, limit, .. } = short;
    let (need, free, reserved) = (amount(short.need), amount(short.free), amount(short.reserved));
    failure(match short.later {
        true => format!(
            "{WAITING_FOR_ROOM}: {image} takes about {need} more, {free} are free on {disk}, and other pulls of this node have reserved \
             {reserved} of that; it goes on when they are done or have had their turn. The limit of {limit} % is the agent's \
             --max-disk"
        ),
        false => format!(
            "{image} takes about {need} more and {free} are free, which would fill {disk} to {full} %, past the limit of \
             {limit} %; free some space, or raise the agent's --max-disk"
        ),
    })
}

pub(crate) fn failure(message: String) -> Failure {
    Failure { reason: Reason::Disk, message, retryable: true, pause: None }
}

/// About what a layer has when it is unpacked. A compressed one does not say; twice is what images have on average.
pub(crate) fn unpacked(media_type: &str, size: u64) -> DiskAmount {
    let packed = media_type.ends_with("gzip") || media_type.ends_with("zstd");
    let bytes = if packed { size.saturating_mul(2) } else { size };
    DiskAmount { bytes, inodes: bytes / BYTES_OF_A_FILE }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn packed_layers_grow() {
        let unpacked = |media_type, size| unpacked(media_type, size).bytes;
        assert_eq!(unpacked("application/vnd.oci.image.layer.v1.tar+gzip", 10), 20);
        assert_eq!(unpacked("application/vnd.docker.image.rootfs.diff.tar.gzip", 10), 20);
        assert_eq!(unpacked("application/vnd.oci.image.layer.v1.tar", 10), 10);
        assert_eq!(super::unpacked("application/vnd.oci.image.layer.v1.tar", 1 << 20).inodes, 32);
    }

    /// On disks that may be this full.
    fn guard(dir: &std::path::Path, percent: u8) -> DiskGuard {
        let runtime = Runtime::Layout(stoker_runtime::Layout::open(dir.join("images")).unwrap());
        let registry = stoker_transfer::Registry::new(Default::default()).unwrap();
        let spool = stoker_transfer::Spool::open(dir.join("spool"), registry, Default::default()).unwrap();
        let leftovers = Leftovers {
            clock: Arc::new(|| crate::testing::at(0)),
            spool: spool.clone(),
            runtime: runtime.clone(),
            uses: Arc::default(),
            pulls: Arc::new(crate::pulls::PullNotes::open(dir.join("pulls"))),
            age: std::time::Duration::ZERO,
            lingering: Default::default(),
            turn: Arc::default(),
        };
        DiskGuard { runtime, spool: spool.dir().into(), room: Room::new(percent), leftovers }
    }

    #[tokio::test]
    async fn a_disk_that_a_pull_of_the_runtime_has_overfilled_is_told() {
        let dir = tempfile::tempdir().unwrap();
        let note = guard(dir.path(), 0).overflowed("r/i:1").await.unwrap();
        assert!(note.contains("past the limit of 0 %") && note.contains("--max-disk"), "{note}");
        assert_eq!(guard(dir.path(), 100).overflowed("r/i:1").await, None);
    }

    #[test]
    fn a_shortage_names_the_image_and_what_to_do() {
        let short = |later| Short {
            of: Unit::Bytes,
            need: 4 << 20,
            free: 2 << 20,
            reserved: 1 << 20,
            full: 90,
            limit: 80,
            later,
            device: 1,
        };
        let waits = no_room("r/i:1", "the disk of the spool", short(true));
        assert!(waits.message.starts_with(WAITING_FOR_ROOM) && waits.reason == Reason::Disk, "{waits:?}");
        let fails = no_room("r/i:1", "the disk of the spool", short(false));
        for says in [
            "r/i:1 takes about 4.0 MiB more",
            "2.0 MiB are free",
            "the disk of the spool to 90 %",
            "limit of 80 %",
            "--max-disk",
        ] {
            assert!(fails.message.contains(says), "{fails:?}");
        }
        assert!(
            ["r/i:1", "4.0 MiB", "2.0 MiB are free", "reserved 1.0 MiB", "--max-disk"]
                .iter()
                .all(|says| waits.message.contains(says))
        );
    }
}
