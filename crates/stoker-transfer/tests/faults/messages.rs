//! Every failure message of this crate, as it appears in the report of a node. One snapshot holds all of them, for a person
//! to judge: does each name the image, the host that failed, the cause and the next step?

mod answers;
mod content;
mod node;
mod ways;

use std::fmt::Write as _;

use stoker_testbed::registry::{Fault, On};
use stoker_transfer::{Platform, PlatformImage, Settings};

use super::*;

/// The text of the snapshot.
#[derive(Default)]
struct Page {
    text: String,
    /// Names instead of ports, which differ from run to run. A port may be given again: the last name counts.
    names: Vec<(String, &'static str)>,
}

impl Page {
    fn part(&mut self, what: &str) {
        writeln!(self.text, "# {what}\n").unwrap();
    }

    /// Notes an error that the report of an order would show.
    fn note(&mut self, what: &str, error: &Error) {
        assert_clean(error);
        let text = error.to_string();
        assert!(!text.contains(['\n', '\r', '\t', '\u{1b}']), "{text:?}");
        assert!(text.contains("; "), "no next step: {text}");
        let text = self.names.iter().rev().fold(text, |text, (host, name)| text.replace(host, name));
        let again = if error.is_retryable() { "retried" } else { "not retried" };
        writeln!(self.text, "## {what}\n{:?}, {again}: {text}\n", error.kind()).unwrap();
    }

    /// Notes an error about the image of a [`Bench`].
    fn note_image(&mut self, what: &str, error: &Error) {
        assert!(error.to_string().contains("/team/app"), "{error}");
        self.note(what, error);
    }

    fn named(&mut self, host: &str, name: &'static str) {
        self.names.push((host.to_owned(), name));
    }
}

/// A registry with one way to fail, and what comes of it.
struct Case<'a> {
    page: &'a mut Page,
    bench: Bench,
}

impl<'a> Case<'a> {
    async fn new(page: &'a mut Page) -> Self {
        let bench = Bench::new().await;
        page.named(&bench.registry.host(), "REGISTRY");
        Self { page, bench }
    }

    fn fault(self, on: On, fault: Fault) -> Self {
        self.bench.registry.fault(on, usize::MAX, fault);
        self
    }

    /// Another host, which the registry may name.
    async fn other(&mut self, name: &'static str) -> testbed::Registry {
        let other = testbed::Registry::start().await.unwrap();
        self.page.named(&other.host(), name);
        other
    }

    async fn tag(self, what: &str) {
        self.tag_as(what, None).await;
    }

    async fn tag_as(self, what: &str, login: Option<Login>) {
        let error = self.bench.client.resolve(&self.bench.image(), login.as_ref()).await.unwrap_err();
        self.page.note_image(what, &error);
    }

    async fn image(&self, digest: &str) -> Result<PlatformImage, Error> {
        let platform: Platform = "linux/amd64".parse().unwrap();
        self.bench.client.image(&self.bench.image(), &digest_of(digest), &platform, None).await
    }

    async fn manifest(self, what: &str) {
        let digest = self.bench.pushed.manifest.clone();
        self.document(what, &digest).await;
    }

    async fn document(self, what: &str, digest: &str) {
        let error = self.image(digest).await.unwrap_err();
        self.page.note_image(what, &error);
    }

    async fn blob(self, what: &str) {
        let error = self.bench.fetch().await.unwrap_err();
        self.page.note_image(what, &error);
    }

    /// A blob whose host stays silent after each answer has begun.
    async fn silent_blob(self, what: &str, host: &testbed::Registry) {
        host.fault(On::Blobs, usize::MAX, Fault::IgnoreRange);
        host.fault(On::Blobs, usize::MAX, Fault::StallAfter(1));
        let growing = self.bench.spool.blob(self.bench.source(), self.bench.descriptor());
        for tries in 1..=3 {
            came(&growing, tries).await;
            pass(STALL).await;
        }
        self.page.note_image(what, &growing.complete().await.unwrap_err());
    }
}

#[tokio::test]
async fn every_failure_names_the_image_the_host_the_cause_and_the_next_step() {
    let mut page = Page::default();
    ways::all(&mut page).await;
    answers::all(&mut page).await;
    content::all(&mut page).await;
    node::all(&mut page).await;
    insta::assert_snapshot!("messages", page.text);
}
