//! B6 for one node: the whole of `stoker up` while it brings a layer of 1 GiB into containerd. An agent alone has less.

use std::time::Duration;

use stoker_testbed::containerd::Version;
use stoker_testbed::docker_registry::DockerRegistry;
use stoker_testbed::image::{Compression, ImageBuilder, LayerBuilder};
use stoker_testbed::memory;

use crate::Outcome;
use crate::arms::{self, Stoker};

pub(crate) async fn measure(version: Version, name: &str) -> Outcome<()> {
    let Some(registry) = DockerRegistry::start(Default::default()).await? else { return Ok(()) };
    let Some(containerd) = arms::containerd(version, false).await? else { return Ok(()) };
    let layer = tokio::task::spawn_blocking(|| LayerBuilder::new().noise("large", 1 << 30, 1).build(Compression::Gzip))
        .await??;
    registry.push("bench/large", "v1", &ImageBuilder::new().layer(&layer).build()).await?;
    drop(layer);
    let mut stoker = Stoker::start(&containerd)?;
    let (id, reference) = (stoker.id(), format!("{}/bench/large:v1", registry.host()));
    let mut peak: f64 = 0.0;
    {
        let pull = stoker.pull(&reference);
        tokio::pin!(pull);
        loop {
            tokio::select! {
                took = &mut pull => break took.map(|_| ())?,
                () = tokio::time::sleep(Duration::from_millis(20)) => peak = peak.max(memory::of(id, "RssAnon").unwrap_or_default()),
            }
        }
    }
    println!("containerd {name}: peak RssAnon of `stoker up` with a layer of 1 GiB {peak:.1} MiB");
    stoker.stop()
}
