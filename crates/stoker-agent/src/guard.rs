//! The disk guard: an image that would fill a disk past its limit is not begun. The kubelet's collector starts at 85 % and
//! would take what we brought.

use std::path::PathBuf;

use stoker_core::Reason;
use stoker_core::human::bytes;
use stoker_core::step::Failure;
use stoker_runtime::{Runtime, space};

use crate::leftovers::Leftovers;

/// What an image still takes, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Need {
    /// In the spool, for a while.
    pub(crate) spool: u64,
    /// In the image store.
    pub(crate) images: u64,
}

/// Looks at the disks before an image is begun.
#[derive(Clone)]
pub(crate) struct Guard {
    pub(crate) runtime: Runtime,
    pub(crate) spool: PathBuf,
    /// How full a disk may become, in percent.
    pub(crate) percent: u8,
    /// What goes first where there is no room.
    pub(crate) leftovers: Leftovers,
}

impl Guard {
    /// Whether there is room, also without what orders that were taken back have left. What cannot be seen from here is not
    /// judged.
    pub(crate) async fn check(&self, image: &str, need: Need) -> Result<(), Failure> {
        match self.room(image, need).await {
            Err(_) if self.leftovers.clear().await => self.room(image, need).await,
            room => room,
        }
    }

    async fn room(&self, image: &str, need: Need) -> Result<(), Failure> {
        let images = self.runtime.space().await.ok().flatten();
        let spool = space::of(self.spool.clone()).await;
        let same = matches!((&images, &spool), (Some(images), Some(spool)) if images.device == spool.device);
        let wants = match same {
            true => vec![("the disk of the images", images, need.spool.saturating_add(need.images))],
            false => {
                vec![("the disk of the images", images, need.images), ("the disk of the spool", spool, need.spool)]
            }
        };
        // What a layer takes unpacked is a guess. Who allows all of a disk is told when it is really full.
        if self.percent >= 100 {
            return Ok(());
        }
        for (what, space, need) in wants {
            let Some(space) = space else { continue };
            if let Some(full) = over(space.total, space.free, need, self.percent) {
                return Err(Failure {
                    reason: Reason::Disk,
                    message: format!(
                        "{image} takes about {} more, which would fill {what} to {full} %, past the limit of {} %; free \
                         some space, or raise the agent's --max-disk",
                        bytes(need),
                        self.percent
                    ),
                    retryable: true,
                    pause: None,
                });
            }
        }
        Ok(())
    }
}

/// How full a disk would be in percent, where that is more than it may. What needs nothing is always allowed.
fn over(total: u64, free: u64, need: u64, percent: u8) -> Option<u64> {
    if total == 0 || need == 0 {
        return None;
    }
    let used = u128::from(total.saturating_sub(free)) + u128::from(need);
    let allowed = u128::from(total) * u128::from(percent) / 100;
    (used > allowed).then(|| u64::try_from(used * 100 / u128::from(total)).unwrap_or(u64::MAX))
}

/// About what a layer has when it is unpacked. A compressed one does not say; twice is what images have on average.
pub(crate) fn unpacked(media_type: &str, size: u64) -> u64 {
    let packed = media_type.ends_with("gzip") || media_type.ends_with("zstd");
    if packed { size.saturating_mul(2) } else { size }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_is_never_filled_past_its_limit() {
        for (total, free, need, expected) in [
            (100, 50, 30, None),
            (100, 50, 31, Some(81)),
            (100, 10, 0, None),
            (100, 10, 1, Some(91)),
            (0, 0, 5, None),
            (u64::MAX, 0, u64::MAX, Some(200)),
        ] {
            assert_eq!(over(total, free, need, 80), expected, "{total} {free} {need}");
        }
    }

    #[test]
    fn packed_layers_grow() {
        assert_eq!(unpacked("application/vnd.oci.image.layer.v1.tar+gzip", 10), 20);
        assert_eq!(unpacked("application/vnd.docker.image.rootfs.diff.tar.gzip", 10), 20);
        assert_eq!(unpacked("application/vnd.oci.image.layer.v1.tar", 10), 10);
    }
}
