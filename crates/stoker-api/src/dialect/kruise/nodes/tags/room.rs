//! Whether a NodeImage has room for one tag more: a NodeImage that a schema refuses, or that is too large, could not be written at all. In:
//! the tags as they should be, and a tag that a job wants besides. Out: the tags of jobs that have ended and that go to make room. Tags that
//! people wrote, and tags of jobs that run, never go.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;
use stoker_core::World;

use super::loans::without_tags;
use super::{Tag, Wanted, has_ended_job, owners, parsed};
use crate::dialect::kruise::node_image::{MOST_IMAGES, MOST_TAGS, TagOwner};
use crate::dialect::kruise::nodes::row::{NodeImageRow, is_job};

/// As many tags as fit into an object together with their status. Jobs beyond that are served, and not shown.
const MOST_OF_ALL: usize = 1000;
/// A namespace with so many tags leaves a quarter of the room to others.
const FEW_TAGS: usize = 16;
/// Repositories that jobs leave to people.
const OF_PEOPLE: usize = 16;

/// Repository and tag.
pub(super) type TagName = (String, String);

/// Tags as they should be.
pub(super) type Tags = BTreeMap<TagName, Tag>;

/// How many repositories and how many tags there may be.
#[derive(Clone, Copy)]
struct MostShown {
    images: usize,
    tags: usize,
}

impl MostShown {
    const OF_ALL: Self = Self { images: MOST_IMAGES - OF_PEOPLE, tags: MOST_OF_ALL };
    const OF_A_NAMESPACE: Self = Self { images: MOST_IMAGES / 4 * 3, tags: MOST_OF_ALL / 4 * 3 };

    /// Those that count for a namespace: no namespace takes all of the room.
    fn of(tags: &Tags, namespace: &str) -> Self {
        let is_owner = |owner: &Value| owner.get("namespace").and_then(Value::as_str) == Some(namespace);
        let own = tags.values().filter(|tag| owners(&tag.json).iter().any(is_owner)).count();
        if own < FEW_TAGS { Self::OF_ALL } else { Self::OF_A_NAMESPACE }
    }
}

/// What there is no room for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lack {
    /// Another tag of this repository.
    TagOfImage,
    /// Another repository.
    Image,
    /// Another tag.
    Tag,
}

/// What keeps another tag of this repository out; nothing where it fits.
fn lack(row: &NodeImageRow, tags: &Tags, image: &str, most: MostShown) -> Option<Lack> {
    let own = tags.keys().filter(|(of, _)| of == image).count();
    let images: BTreeSet<&String> = tags.keys().map(|(image, _)| image).collect();
    let bare = usize::try_from(row.bare).unwrap_or(usize::MAX);
    match own {
        _ if own >= MOST_TAGS => Some(Lack::TagOfImage),
        0 if images.len().saturating_add(bare) >= most.images => Some(Lack::Image),
        _ if tags.len() >= most.tags => Some(Lack::Tag),
        _ => None,
    }
}

/// Takes away what has to go so that a tag fits which is not there yet, and names it: nothing where there is room. None where the tag does
/// not fit at all. For a job that has ended no other tag goes.
pub(super) fn make(row: &NodeImageRow, tags: &mut Tags, wanted: &Wanted<'_>, world: &World) -> Option<Vec<TagName>> {
    let (image, namespace) = (wanted.name.0.as_str(), wanted.job.id.namespace());
    let most = MostShown::of(tags, namespace);
    let Some(lacks) = lack(row, tags, image, most) else { return Some(Vec::new()) };
    if wanted.job.ended.is_some() {
        return None;
    }
    // Where there is room for other namespaces, theirs is not taken.
    let own = lack(row, tags, image, MostShown::OF_ALL).is_none();
    let has_ended = |owner: &TagOwner| {
        let is_own = owner.namespace.as_deref() == Some(namespace);
        is_job(owner) && has_ended_job(owner, world) && (is_own || !own)
    };
    let may_go = |tag: &Tag| {
        let owners = owners(&tag.json);
        !owners.is_empty() && owners.iter().map(parsed).all(|owner| has_ended(&owner))
    };
    let goes = victims(row, tags, (lacks, image), may_go);
    let gone: Vec<(TagName, Tag)> = goes.into_iter().filter_map(|name| tags.remove_entry(&name)).collect();
    if lack(row, tags, image, most).is_some() {
        tags.extend(gone);
        return None;
    }
    Some(gone.into_iter().map(|(name, _)| name).collect())
}

/// The oldest tag that may go, or all tags of a repository that may go as a whole.
fn victims(
    row: &NodeImageRow,
    tags: &Tags,
    (lacks, image): (Lack, &str),
    may_go: impl Fn(&Tag) -> bool,
) -> Vec<TagName> {
    let created = |tag: &Tag| tag.json.get("createdAt").and_then(Value::as_str).unwrap_or_default().to_owned();
    let mut open: Vec<(String, &TagName)> =
        tags.iter().filter(|(_, tag)| may_go(tag)).map(|(name, tag)| (created(tag), name)).collect();
    open.sort();
    let open: Vec<&TagName> = open.into_iter().map(|(_, name)| name).collect();
    let of = |image: &str| tags.iter().filter(move |((of, _), _)| *of == *image).collect::<Vec<(&TagName, &Tag)>>();
    match lacks {
        Lack::TagOfImage => open.into_iter().find(|(of, _)| *of == *image).into_iter().cloned().collect(),
        Lack::Tag => open.into_iter().take(1).cloned().collect(),
        Lack::Image => {
            // A repository with Secrets of its own stays without tags.
            let goes = |(image, _): &&TagName| {
                of(image).iter().all(|(_, tag)| may_go(tag)) && without_tags(row, image).is_null()
            };
            let first = open.iter().copied().find(goes);
            first.into_iter().flat_map(|(image, _)| of(image)).map(|(name, _)| name.clone()).collect()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// So many repositories with so many tags each, of jobs of one namespace.
    fn tags(images: usize, each: usize, namespace: &str) -> Tags {
        let names = (0..images).flat_map(|image| (0..each).map(move |tag| (format!("i{image}"), format!("t{tag}"))));
        let json = json!({ "ownerReferences": [{ "namespace": namespace }] });
        names.map(|name| (name, Tag { json: json.clone(), changed: false })).collect()
    }

    fn fits(row: &NodeImageRow, tags: &Tags, image: &str, namespace: &str) -> bool {
        lack(row, tags, image, MostShown::of(tags, namespace)).is_none()
    }

    /// A spec that a schema refuses could not be written at all, with nothing in it.
    #[test]
    fn no_more_tags_are_shown_than_a_schema_allows() {
        for (images, each, bare, image, expected) in [
            (0, 0, 0, "new", true),
            (239, 1, 0, "new", true),
            (240, 1, 0, "new", false),
            (256, 1, 0, "i0", true),
            (239, 1, 1, "new", false),
            (1, 255, 0, "i0", true),
            (1, 256, 0, "i0", false),
            (4, 250, 0, "i0", false),
        ] {
            let row = NodeImageRow { bare, ..NodeImageRow::default() };
            let others = tags(images, each, "others");
            assert_eq!(fits(&row, &others, image, "shop"), expected, "{images} × {each}, {image}");
        }
    }

    #[test]
    fn no_namespace_takes_the_room_of_another() {
        let row = NodeImageRow::default();
        for (images, each, own, other) in [(15, 1, true, true), (192, 1, false, true), (3, 250, false, true)] {
            let tags = tags(images, each, "greedy");
            assert_eq!(fits(&row, &tags, "new", "greedy"), own, "{images} × {each}");
            assert_eq!(fits(&row, &tags, "new", "shop"), other, "{images} × {each}");
        }
    }

    /// What goes, where tags that begin with `t` may.
    fn goes(lacks: Lack, tags: &[(&str, &str, &str)]) -> Vec<String> {
        let tag = |(image, tag, created): &(&str, &str, &str)| {
            let json = json!({ "tag": tag, "createdAt": created });
            (((*image).to_owned(), (*tag).to_owned()), Tag { json, changed: false })
        };
        let tags: Tags = tags.iter().map(tag).collect();
        let may_go = |tag: &Tag| tag.json["tag"].as_str().unwrap().starts_with('t');
        let victims = victims(&NodeImageRow::default(), &tags, (lacks, "a"), may_go);
        victims.into_iter().map(|(image, tag)| format!("{image}:{tag}")).collect()
    }

    #[test]
    fn the_oldest_goes_and_of_repositories_all_tags() {
        let tags =
            [("a", "t1", "3"), ("a", "t2", "2"), ("b", "t1", "0"), ("b", "x", "0"), ("c", "t1", "9"), ("c", "t2", "1")];
        assert_eq!(goes(Lack::Tag, &tags), ["b:t1"]);
        assert_eq!(goes(Lack::TagOfImage, &tags), ["a:t2"]);
        assert_eq!(goes(Lack::Image, &tags), ["c:t1", "c:t2"]);
        assert_eq!(goes(Lack::Image, &tags[2..4]), [""; 0]);
    }
}
