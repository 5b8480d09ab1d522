//! Half a hand-over, minute by minute for eight hours: Kruise's manager makes NodeImages, hands out tags, raises versions, takes tags back and
//! fails those that nobody answers. Our agents answer them, each in its own way, while writes are lost, cross those of the manager, and the
//! controller is away for a while.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use serde_json::json;
use stoker_testbed::paper::PaperId;

use super::agents::{self, Work};
use super::cluster::{Cluster, NODES};
use super::happenings::Fate;
use super::manager::{Managing, TagTerms, time};
use super::users::IMAGES;
use super::wire::{self, Tag, node_image};

const HOURS: i64 = 8;
/// The controller is away in these minutes, longer than the manager waits for an answer.
const AWAY: Range<i64> = 119..140;
const WEB: &str = IMAGES[0];
const DB: &str = IMAGES[1];
const CACHE: &str = IMAGES[2];
const FRESH: &str = "reg.test/fresh:1";

const ONCE: TagTerms = TagTerms { ttl: 6 * 3600, deadline: None, always: true };
const SHORT: TagTerms = TagTerms { ttl: 900, deadline: None, always: true };
/// As of a job with the policy Never, with a shorter time to live.
const ROUNDS: TagTerms = TagTerms { ttl: 3600, deadline: Some(1800), always: true };

fn job(name: &str) -> PaperId {
    PaperId::new("ImagePullJob", "shop", name)
}

struct Hours {
    cluster: Cluster,
    minute: i64,
    /// Since when the controller has been there.
    up: i64,
    /// Entries of tags that are gone, and since when.
    left: BTreeMap<Tag, i64>,
    /// How old tags were when their status first said that they wait, in seconds.
    waited: BTreeMap<Tag, i64>,
}

impl Hours {
    fn new() -> Self {
        let mut cluster = Cluster::new(true);
        let now = cluster.now();
        for name in ["web", "again", "db", "cache", "fresh"] {
            let object = json!({
                "apiVersion": "apps.kruise.io/v1beta1", "kind": "ImagePullJob", "metadata": { "namespace": "shop", "name": name },
                "spec": { "image": WEB },
            });
            cluster.paper.create(serde_json::from_value(object).unwrap(), now).unwrap();
        }
        // This node has no agent yet.
        cluster.paper.delete(&agents::id("n4"), None, now).unwrap();
        cluster.agents.remove("n4");
        Self { cluster, minute: 0, up: 0, left: BTreeMap::new(), waited: BTreeMap::new() }
    }

    /// What happens in a minute.
    fn minute(&mut self) -> Result<(), String> {
        self.minute += 1;
        self.cluster.pass(60);
        self.cluster.manage(Managing::Round);
        let is_away = AWAY.contains(&self.minute);
        if is_away {
            self.up = self.minute + 1;
        } else {
            for _ in 0..2 {
                self.cluster.hear_open(true);
                self.cluster.turn()?;
            }
        }
        // The manager is faster than the writes that are on their way.
        self.script()?;
        if !is_away {
            let fate = match self.minute % 7 {
                3 => Fate::Lost,
                5 => Fate::Unanswered,
                _ => Fate::Done,
            };
            self.cluster.deliver(0, fate)?;
            self.cluster.deliver_all()?;
        }
        self.agents();
        self.cluster.check()?;
        self.look()
    }

    fn hand_out(&mut self, name: &str, image: &str, nodes: &[&str], terms: TagTerms) {
        nodes.iter().for_each(|node| self.cluster.hand_out(node, image, &job(name), terms));
    }

    fn script(&mut self) -> Result<(), String> {
        let now = self.cluster.now();
        match self.minute {
            5 => self.hand_out("web", WEB, &NODES, ONCE),
            // Just when it is to be said that the tag of n3 waits.
            9 => self.hand_out("again", WEB, &["n3"], ONCE),
            40 => self.hand_out("db", DB, &["n1"], SHORT),
            50 => self.hand_out("db", DB, &["n2", "n3"], ONCE),
            // While n2 still pulls.
            60 => self.hand_out("again", WEB, &["n1", "n2"], ONCE),
            // Nobody hears of it in time.
            118 => self.hand_out("cache", CACHE, &["n1", "n3"], ONCE),
            150 => self.hand_out("again", CACHE, &["n1", "n3"], ONCE),
            180 => {
                agents::register(&mut self.cluster.paper, "n4", now);
                self.cluster.agents.entry("n4").or_default();
            }
            182 => self.hand_out("again", WEB, &["n4"], ONCE),
            200 => self.cluster.restart(1)?,
            210 => self.cluster.paper.delete(&job("db"), None, now).map_err(|status| status.message)?,
            // Early enough for an answer.
            240..440 => {
                for node in ["n1", "n3"] {
                    let object = self.cluster.paper.get(&node_image(node)).cloned();
                    let is_there = object.is_some_and(|object| {
                        wire::tags(&object).iter().any(|(image, _)| FRESH.starts_with(image.as_str()))
                    });
                    if !is_there {
                        self.hand_out("fresh", FRESH, &[node], ROUNDS);
                    }
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// Agents read, work and tell.
    fn agents(&mut self) {
        let now = self.cluster.now();
        for (name, agent) in &mut self.cluster.agents {
            agent.read(&self.cluster.paper, name);
            match *name {
                // It has other things to do, and then it is slow.
                "n2" => agent.work_by_age(now, |order, age| match age {
                    _ if order.ask.is_question() => Some(Work::Succeed),
                    ..1_800 => Some(Work::Queue),
                    1_800..4_500 => Some(Work::Begin),
                    _ => Some(Work::Succeed),
                }),
                // It says nothing for a while.
                "n3" => agent.work_by_age(now, |_, age| (age >= 480).then_some(Work::Succeed)),
                _ => agent.work_by_age(now, |_, _| Some(Work::Succeed)),
            }
            agent.say(&mut self.cluster.paper, name, 1, now);
        }
    }

    /// What is left of tags that are gone, and what waits.
    fn look(&mut self) -> Result<(), String> {
        let (now, mut left) = (self.cluster.now().as_second(), BTreeMap::new());
        for object in self.cluster.paper.of_kind("NodeImage") {
            let node = object.metadata.name.clone().unwrap_or_default();
            if let Some((image, entry)) = self.cluster.left_of(object) {
                let tag = tag(&node, image, entry);
                let since = self.left.get(&tag).copied().unwrap_or(self.minute).max(self.up);
                if self.minute - since > 4 {
                    return Err(format!("{tag:?} is gone, and its status is not"));
                }
                left.insert(tag, since);
            }
            for (image, of) in wire::tags(object) {
                let said = wire::said(object, image, of).filter(|said| said["phase"] == "Waiting");
                if let (Some(_), Some(created)) = (said, time(&of["createdAt"])) {
                    self.waited.entry(tag(&node, image, of)).or_insert(now - created);
                }
            }
        }
        self.left = left;
        Ok(())
    }

    /// Every version of a tag of which a status has ever said that it has ended, with the time of the tag.
    fn answered(&self) -> BTreeSet<(Tag, i64)> {
        let history = self.cluster.paper.since(0).iter().filter(|entry| entry.id.kind == "NodeImage");
        let objects = history.filter_map(|entry| Some((&entry.id.name, entry.after.as_ref()?)));
        let ends = objects.flat_map(|(node, object)| {
            let tags = wire::tags(object).into_iter();
            let ended = tags.filter(|(image, of)| wire::said(object, image, of).is_some_and(wire::is_done));
            ended.filter_map(move |(image, of)| Some((tag(node, image, of), time(&of["createdAt"])?)))
        });
        ends.collect()
    }
}

fn tag(node: &str, image: &str, tag: &serde_json::Value) -> Tag {
    (node.into(), image.into(), tag["tag"].as_str().unwrap_or_default().into(), wire::version(tag))
}

#[test]
fn agents_answer_what_kruises_manager_hands_out_for_hours() {
    let mut hours = Hours::new();
    let result = (0..HOURS * 60).try_for_each(|_| hours.minute());
    let log = hours.cluster.log.join("\n");
    result.unwrap_or_else(|law| panic!("{law}\n{log}"));
    let manager = hours.cluster.manager.as_ref().unwrap();
    // It fails only what nobody could answer.
    let failed: Vec<(&str, &str)> = manager.failed.iter().map(|(node, image, ..)| (&**node, &**image)).collect();
    assert_eq!(failed, [("n1", "reg.test/cache"), ("n3", "reg.test/cache")], "{log}");
    // And that stays until somebody asks again, see `keeps_to_its_own`; every version is answered.
    let answered = hours.answered();
    let unanswered: Vec<&(Tag, i64)> = manager.handed.difference(&answered).collect();
    assert!(unanswered.is_empty() && manager.handed.len() > 16, "{unanswered:?} of {:?}\n{log}", manager.handed);
    for waits in [("n2", WEB, 1), ("n3", WEB, 1), ("n3", DB, 0), ("n4", WEB, 0)] {
        let (node, (image, name), version) = (waits.0, waits.1.rsplit_once(':').unwrap(), waits.2);
        let tag: Tag = (node.into(), image.into(), name.into(), version);
        let age = hours.waited.get(&tag);
        assert!(
            age.is_some_and(|age| (240..=420).contains(age)),
            "{waits:?} says after {age:?} s that it waits\n{log}"
        );
    }
    for object in hours.cluster.paper.of_kind("NodeImage") {
        let (spec, status) = (wire::tags(object), wire::field(object, "/status"));
        assert_eq!(status["desired"], spec.len(), "{status}");
        for (image, tag) in spec {
            let phase = wire::said(object, image, tag).map(|said| said["phase"].clone()).unwrap_or_default();
            let fresh = FRESH.starts_with(image.as_str());
            assert!(phase == "Succeeded" || fresh, "{image} {tag}: {status}\n{log}");
        }
    }
    let n1 = hours.cluster.paper.get(&node_image("n1")).unwrap();
    assert!(wire::entry(n1, "reg.test/db", "1").is_none(), "its time to live was over");
    let is_round = |tag: &Tag| tag.0 == "n1" && FRESH.starts_with(&tag.1);
    let rounds = manager.handed.iter().filter(|(tag, _)| is_round(tag)).count();
    assert!(rounds >= 3, "{rounds} rounds\n{log}");
}
