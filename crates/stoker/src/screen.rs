//! Progress for people: bars on a terminal, plain lines elsewhere.

use std::collections::BTreeMap;
use std::io::IsTerminal as _;
use std::time::Duration;

use indicatif::{MultiProgress, ProgressBar, ProgressStyle};
use stoker_api::Summary;
use stoker_core::Phase;
use stoker_core::model::Origin;
use stoker_core::{Bytes, Reason, human, text};
use tokio::time::Instant;

use crate::follow::ReportRow;
use crate::out::errln;

/// Where progress is drawn.
pub(crate) enum Screen {
    /// A terminal.
    Bars(Bars),
    /// Anything else.
    Lines(Lines),
}

impl Screen {
    /// Bars if standard error is a terminal.
    pub(crate) fn new() -> Self {
        match std::io::stderr().is_terminal() {
            true => Screen::Bars(Bars { all: MultiProgress::new(), bars: BTreeMap::new(), sums: None }),
            false => Screen::Lines(Lines {
                said: BTreeMap::new(),
                message: String::new(),
                bytes: String::new(),
                next: Instant::now(),
            }),
        }
    }

    /// Draws the present state.
    pub(crate) fn show(&mut self, summary: &Summary, rows: &[ReportRow]) {
        match self {
            Screen::Bars(bars) => bars.show(summary, rows),
            Screen::Lines(lines) => lines.show(summary, rows),
        }
    }

    /// Leaves the bars as they are and gives the terminal back.
    pub(crate) fn close(self) {
        if let Screen::Bars(bars) = self {
            bars.bars.into_values().for_each(|bar| bar.abandon());
            bars.sums.iter().for_each(|sums| sums.finish_and_clear());
        }
    }
}

/// One bar an image and node.
pub(crate) struct Bars {
    all: MultiProgress,
    bars: BTreeMap<(String, String), ProgressBar>,
    sums: Option<ProgressBar>,
}

impl Bars {
    fn show(&mut self, summary: &Summary, rows: &[ReportRow]) {
        for row in rows {
            let key = (row.node.clone(), row.image.clone());
            let bar = match self.bars.get(&key) {
                Some(bar) => bar,
                None => {
                    let before = self.bars.range(..key.clone()).next_back().map(|(_, bar)| bar.clone());
                    let bar = ProgressBar::new(0).with_style(style());
                    let bar = match before {
                        Some(before) => self.all.insert_after(&before, bar),
                        None => self.all.insert(0, bar),
                    };
                    bar.set_prefix(text::escape(&format!("{} {}", row.node, row.image)).into_owned());
                    self.bars.entry(key).or_insert(bar)
                }
            };
            bar.set_length(row.report.bytes.total.max(1));
            bar.set_position(row.report.bytes.done);
            bar.set_message(word(row));
        }
        let sums = self.sums.get_or_insert_with(|| {
            let template = ProgressStyle::with_template("{msg}").unwrap_or_else(|_| ProgressStyle::default_bar());
            self.all.add(ProgressBar::new(1).with_style(template))
        });
        sums.set_message(text::escape(&summary.message).into_owned());
    }
}

fn style() -> ProgressStyle {
    let template = "{prefix:<44} {bar:24.green} {binary_bytes:>11} of {binary_total_bytes:<11} {msg}";
    ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar()).progress_chars("━━ ")
}

fn word(row: &ReportRow) -> String {
    let report = &row.report;
    match (report.phase, report.reason) {
        (Phase::Succeeded, _) => arrived(report.bytes, report.from.as_ref()),
        // It was only asked whether it has the image.
        (Phase::Failed, Some(Reason::Unresolved)) => String::new(),
        (Phase::Failed, Some(reason)) => format!("failed: {reason}"),
        (Phase::Failed, None) => "failed".into(),
        (Phase::Pulling, Some(reason)) => format!("attempt {} after {reason}", report.attempt),
        // The digest is known; the pull comes next.
        (Phase::Resolved, _) | (Phase::Pulling, None) => String::new(),
    }
}

/// How an image came that is there now.
fn arrived(bytes: Bytes, from: Option<&Origin>) -> String {
    match (bytes.upstream, bytes.peers, from) {
        (0, 0, _) => "was there".into(),
        (_, 0, _) => "done".into(),
        (_, _, Some(Origin::Peer(node))) => format!("done, from {node}"),
        _ => "done, from other nodes".into(),
    }
}

/// The time between two lines for the whole.
pub(crate) const PAUSE: Duration = Duration::from_secs(2);

/// A line for every end and every trouble, and now and then one for the whole.
pub(crate) struct Lines {
    said: BTreeMap<(String, String), String>,
    message: String,
    bytes: String,
    next: Instant,
}

impl Lines {
    fn show(&mut self, summary: &Summary, rows: &[ReportRow]) {
        for row in rows {
            let word = word(row);
            let key = (row.node.clone(), row.image.clone());
            if !word.is_empty() && self.said.get(&key) != Some(&word) {
                errln!("{} {}: {word}, {}", row.node, row.image, human::bytes(row.report.bytes.done));
                self.said.insert(key, word);
            }
        }
        if Instant::now() >= self.next && !summary.message.is_empty() && !summary.ended {
            let (done, total) = rows
                .iter()
                .fold((0, 0), |(done, total), row| (done + row.report.bytes.done, total + row.report.bytes.total));
            if summary.message != self.message {
                errln!("{}", summary.message);
                self.message.clone_from(&summary.message);
            }
            // The message can be long, and is not repeated with the bytes.
            let bytes = format!("{} of {}", human::bytes(done), human::bytes(total));
            if total > 0 && bytes != self.bytes {
                errln!("{bytes}");
                self.bytes = bytes;
            }
            self.next = Instant::now() + PAUSE;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_that_came_from_another_node_was_not_there() {
        let peer = Some(Origin::Peer("node-1".into()));
        let said =
            |upstream, peers, from: Option<&Origin>| arrived(Bytes { upstream, peers, ..Bytes::default() }, from);
        assert_eq!(said(0, 0, None), "was there");
        assert_eq!(said(7, 0, Some(&Origin::Upstream)), "done");
        assert_eq!(said(0, 7, peer.as_ref()), "done, from node-1");
        assert_eq!(said(7, 7, None), "done, from other nodes");
    }
}
