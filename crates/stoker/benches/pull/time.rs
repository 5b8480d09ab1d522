//! B3 and B8: how long until an image is ready, and how long a container then takes to start.

use std::time::{Duration, Instant};

use stoker_testbed::containerd::{Containerd, Version};
use stoker_testbed::docker_registry::DockerRegistry;
use stoker_testbed::image::{Image, tree};

use crate::Outcome;
use crate::arms::{self, Arm};
use crate::images;

/// The ways in the order of a round; the second CRI one is the A/A arm, which should be as quick as the first.
const ROUND: [(Arm, &str); 4] = [(Arm::Ours, "ours"), (Arm::Cri, "cri"), (Arm::Cri, "cri again"), (Arm::Ctr, "ctr")];

pub(crate) async fn measure(version: Version, name: &str, rounds: usize) -> Outcome<()> {
    let Some(registry) = DockerRegistry::start(Default::default()).await? else { return Ok(()) };
    let images = tokio::task::spawn_blocking(|| images::make().map_err(|problem| problem.to_string())).await??;
    let eight = push(&registry, "8layers", &images.eight).await?;
    let cases = [
        ("1 layer", None, push(&registry, "1layer", &images.one).await?),
        ("8 layers", None, eight.clone()),
        ("8 layers, 7 of them there", Some(eight), push(&registry, "8later", &images.eight_later).await?),
    ];
    for (what, before, reference) in cases {
        if !same_files(version, &reference).await? {
            return Ok(());
        }
        let mut times: [Vec<f64>; 4] = Default::default();
        let mut starts: [Vec<f64>; 4] = Default::default();
        for round in 0..rounds {
            // There and back, so that what drifts meets all arms alike.
            let order: Vec<usize> = if round % 2 == 0 { (0..4).collect() } else { (0..4).rev().collect() };
            for at in order {
                let Some(containerd) = arms::containerd(version, false).await? else { return Ok(()) };
                if let Some(before) = &before {
                    arms::pull(ROUND[at].0, &containerd, before).await?;
                }
                times[at].push(arms::pull(ROUND[at].0, &containerd, &reference).await?.as_secs_f64());
                starts[at].push(start(&containerd, &reference).await?.as_secs_f64());
            }
        }
        for (at, (_, arm)) in ROUND.iter().enumerate() {
            println!(
                "containerd {name}, {what}: {arm} {:.2} s, then start {:.0} ms",
                median(&times[at]),
                median(&starts[at]) * 1000.0
            );
        }
        report(&format!("containerd {name}, {what}: cri / ours"), &times[1], &times[0]);
        report(&format!("containerd {name}, {what}: ctr / ours"), &times[3], &times[0]);
        report(&format!("containerd {name}, {what}: A/A cri / cri"), &times[1], &times[2]);
        report(&format!("containerd {name}, {what}: start after ours / after ctr"), &starts[0], &starts[3]);
    }
    Ok(())
}

async fn push(registry: &DockerRegistry, repository: &str, image: &Image) -> Outcome<String> {
    registry.push(&format!("bench/{repository}"), "v1", image).await?;
    Ok(format!("{}/bench/{repository}:v1", registry.host()))
}

/// All ways leave the same files; nothing is timed before that is sure.
async fn same_files(version: Version, reference: &str) -> Outcome<bool> {
    let mut trees = Vec::new();
    for arm in [Arm::Ours, Arm::Cri] {
        let Some(containerd) = arms::containerd(version, false).await? else { return Ok(false) };
        arms::pull(arm, &containerd, reference).await?;
        let root = containerd.mount(reference).await?;
        trees.push(tree(&root)?);
    }
    match trees[0] == trees[1] && trees[0].len() > 100 {
        true => Ok(true),
        false => Err("the files are not those that CRI unpacks".into()),
    }
}

async fn start(containerd: &Containerd, reference: &str) -> Outcome<Duration> {
    let start = Instant::now();
    let ran = containerd.run(reference, &["/bin/true"]).await?;
    match ran.status.success() {
        true => Ok(start.elapsed()),
        false => Err(String::from_utf8_lossy(&ran.stderr).into()),
    }
}

fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or(f64::NAN)
}

/// The median of the ratios round by round, with the least and the greatest.
fn report(what: &str, above: &[f64], below: &[f64]) {
    let ratios: Vec<f64> = above.iter().zip(below).map(|(above, below)| above / below).collect();
    let (least, most) =
        ratios.iter().fold((f64::MAX, f64::MIN), |(least, most), ratio| (least.min(*ratio), most.max(*ratio)));
    println!("{what} {:.2} ({least:.2} to {most:.2})", median(&ratios));
}
