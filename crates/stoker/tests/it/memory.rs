//! The memory of `stoker up` with jobs that come and go. What is counted is bytes, as the kernel counts them.

use futures::StreamExt as _;
use kube::api::{Api, DeleteParams, PostParams};
use kube::runtime::wait::await_condition;
use kube::{Client, ResourceExt as _};
use serde_json::json;
use stoker_api::native::Preheat;
use stoker_testbed::memory;
use stoker_testbed::registry::{Registry, noise};

use crate::bed::Up;

/// Jobs that are made, ended and deleted before the first count, and before the second.
const FIRST: usize = 100;
const ALL: usize = 1000;
/// How much more there may be at the second count than at the first, in MiB.
const MORE: f64 = 24.0;
/// Jobs at one time.
const AT_ONCE: usize = 8;

#[tokio::test(flavor = "multi_thread")]
#[ignore = "long"]
async fn jobs_that_are_gone_take_no_memory() {
    let registry = Registry::start().await.unwrap();
    let tags: Vec<String> = (0..20).map(|tag| format!("v{tag}")).collect();
    for tag in &tags {
        registry.push("shop/web", tag, &[noise(1_000, 1)]);
    }
    let up = Up::start(3);
    let client = up.client().await;
    let run = async |numbers: std::ops::Range<usize>| {
        let job = |number: usize| job(&client, number, format!("{}/shop/web:{}", registry.host(), tags[number % 20]));
        futures::stream::iter(numbers).for_each_concurrent(AT_ONCE, job).await;
        memory::of(up.id(), "RssAnon").expect("it runs")
    };
    let first = run(0..FIRST).await;
    let last = run(FIRST..ALL).await;
    println!("{first:.1} MiB after {FIRST} jobs, {last:.1} MiB after {ALL}");
    assert!(last <= first + MORE, "{first:.1} MiB after {FIRST} jobs, {last:.1} MiB after {ALL}");
    up.run(&["get"]).await.exits(0).says("no jobs");
}

/// Makes a job, waits for its end and deletes it.
async fn job(client: &Client, number: usize, image: String) {
    let preheats: Api<Preheat> = Api::default_namespaced(client.clone());
    let name = format!("job-{number}");
    let preheat = json!({"metadata": {"name": name}, "spec": {"images": [{"image": image}]}});
    let preheat: Preheat = serde_json::from_value(preheat).unwrap();
    let made = preheats.create(&PostParams::default(), &preheat).await.unwrap();
    let ended = |object: Option<&Preheat>| {
        let status = object.and_then(|object| object.status.as_ref());
        status.is_some_and(|status| status.completion_time.is_some())
    };
    let object = await_condition(preheats.clone(), &made.name_any(), ended).await.unwrap().unwrap();
    assert_eq!(object.status.unwrap().phase, "Succeeded");
    preheats.delete(&made.name_any(), &DeleteParams::default()).await.unwrap();
}
