//! B7 and B7b: bytes that the registry has to send, after a kill and for the next version of an image.

use kube::Api;
use stoker_api::native::Preheat;
use stoker_testbed::containerd::Version;
use stoker_testbed::docker_registry::DockerRegistry;
use stoker_testbed::image::{Compression, Image, ImageBuilder, LayerBuilder};
use stoker_testbed::proxy::Proxy;

use crate::Outcome;
use crate::arms::{self, Arm, Stoker};

pub(crate) async fn measure(version: Version, name: &str) -> Outcome<()> {
    kill(version, name).await?;
    for discard in [false, true] {
        next_version(version, name, discard).await?;
    }
    Ok(())
}

/// Killed when half of 200 MB has come.
async fn kill(version: Version, name: &str) -> Outcome<()> {
    const SIZE: u64 = 200 << 20;
    let Some(registry) = DockerRegistry::start(Default::default()).await? else { return Ok(()) };
    let Some(containerd) = arms::containerd(version, false).await? else { return Ok(()) };
    let link = Proxy::start(registry.addr()).await?;
    let image = noise(&[(SIZE, 1)])?;
    registry.push("bench/kill", "v1", &image).await?;
    link.pace(Some(50 << 20));
    let mut stoker = Stoker::start(&containerd)?;
    let preheats: Api<Preheat> = Api::default_namespaced(stoker.client().await?);
    let job = arms::ask(&preheats, &format!("{}/bench/kill:v1", link.host())).await?;
    link.wait_for_bytes(SIZE / 2).await?;
    stoker.kill_and_restart()?;
    let preheats: Api<Preheat> = Api::default_namespaced(stoker.client().await?);
    arms::done(&preheats, &job).await?;
    let again = link.received().saturating_sub(image.layer_bytes());
    println!(
        "containerd {name}: fetched again after a kill at 50 % {:.4} of what was there",
        again as f64 / (SIZE / 2) as f64
    );
    Ok(())
}

/// v2 shares two of its three layers with v1.
async fn next_version(version: Version, name: &str, discard: bool) -> Outcome<()> {
    let Some(registry) = DockerRegistry::start(Default::default()).await? else { return Ok(()) };
    let (one, two) =
        (noise(&[(20 << 20, 1), (10 << 20, 2), (5 << 20, 3)])?, noise(&[(20 << 20, 1), (10 << 20, 2), (5 << 20, 4)])?);
    registry.push("bench/next", "v1", &one).await?;
    registry.push("bench/next", "v2", &two).await?;
    let mut fetched = Vec::new();
    for arm in [Arm::Ours, Arm::Cri] {
        let Some(containerd) = arms::containerd(version, discard).await? else { return Ok(()) };
        let link = Proxy::start(registry.addr()).await?;
        arms::pull(arm, &containerd, &format!("{}/bench/next:v1", link.host())).await?;
        let before = link.received();
        arms::pull(arm, &containerd, &format!("{}/bench/next:v2", link.host())).await?;
        fetched.push(link.received() - before);
    }
    let ratio = fetched[0] as f64 / fetched[1] as f64;
    println!(
        "containerd {name}, discard_unpacked_layers {discard}: bytes of v2, ours / cri {ratio:.3} ({} / {})",
        fetched[0], fetched[1]
    );
    Ok(())
}

fn noise(layers: &[(u64, u64)]) -> Outcome<Image> {
    let mut image = ImageBuilder::new();
    for (size, seed) in layers {
        image =
            image.layer(&LayerBuilder::new().noise(&format!("noise{seed}"), *size, *seed).build(Compression::Gzip)?);
    }
    Ok(image.build())
}
