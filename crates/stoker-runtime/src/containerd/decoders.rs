//! How many layers are unpacked here at one time. A decoder holds a window of up to 8 MiB and some chunks: about 10 MiB.
//!
//! All images share some decoders, and each image has one of its own besides: images whose bytes do not come can hold all shared ones,
//! and keep no other image from being unpacked.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The decoders that images share. Together with those of three images, which is how many an agent pulls at one time, there are eight.
const SHARED: usize = 5;

/// The decoders of a node.
#[derive(Debug)]
pub(super) struct Decoders(Arc<Semaphore>);

impl Default for Decoders {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(SHARED)))
    }
}

impl Decoders {
    /// Those that one image can have.
    pub(super) fn of_image(&self) -> ImageDecoders {
        ImageDecoders { own: Arc::new(Semaphore::new(1)), shared: self.0.clone() }
    }
}

/// The decoders that one image can have.
#[derive(Debug)]
pub(super) struct ImageDecoders {
    own: Arc<Semaphore>,
    shared: Arc<Semaphore>,
}

impl ImageDecoders {
    /// Waits for a decoder; `None` never comes, because nobody closes them.
    pub(super) async fn take(&self) -> Option<OwnedSemaphorePermit> {
        tokio::select! {
            biased;
            own = self.own.clone().acquire_owned() => own.ok(),
            shared = self.shared.clone().acquire_owned() => shared.ok(),
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    #[test]
    fn an_image_with_all_decoders_leaves_one_to_each_other_and_there_are_no_more() {
        let decoders = Decoders::default();
        let [one, two, three] = [(); 3].map(|()| decoders.of_image());
        let all = |image: &ImageDecoders| -> Vec<_> {
            std::iter::from_fn(|| image.take().now_or_never().flatten()).collect()
        };
        let taken = [all(&one), all(&two), all(&three)];
        assert_eq!(taken.each_ref().map(Vec::len), [SHARED + 1, 1, 1]);
        drop(taken);
        assert_eq!(all(&three).len(), SHARED + 1, "they come back");
    }
}
