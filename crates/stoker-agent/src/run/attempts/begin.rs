//! How an attempt begins.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use stoker_core::model::{Key, Order};
use stoker_core::step::{self, Failure};
use stoker_core::{Ask, Reason};
use stoker_transfer::limit::Pace;

use super::{Attempts, RunningAttempt};
use crate::meter::Meter;
use crate::pull::{PullTools, Success, Supply};
use crate::{starts, ways};

impl Attempts {
    /// Begins an attempt, unless too many have broken off.
    pub(super) fn start(&mut self, key: Key, mut order: Order, attempt: u32, now: Timestamp) {
        let task = step::begin(&order, attempt, self.tasks.get(&key).map(|task| &task.report), now);
        if self.starts.is_too_often(key) {
            let message = starts::given_up(&order.image);
            tracing::error!(node = self.node, image = order.image, "{message}");
            let failure = Failure { reason: Reason::GivenUp, message, retryable: false, pause: None };
            self.tasks.insert(key, step::fail(&order, &task, failure, self.salt, now));
            self.starts.ended(key);
            return;
        }
        let doing = match order.ask {
            Ask::Resolve => "asking the registry which digest the tag means",
            Ask::Look => "looking whether the image is there",
            Ask::Fetch(_) => "pulling",
        };
        tracing::info!(node = self.node, image = order.image, attempt, "{doing}");
        let earlier = task.report.bytes;
        // The registry is asked once: what an earlier attempt was told, all other nodes have by now.
        if order.ask == Ask::Fetch(None) {
            order.ask = Ask::Fetch(task.report.pin.clone().filter(|pin| pin.asked == order.asked));
        }
        self.tasks.insert(key, task);
        let meter = Meter::new(self.news.clone());
        let supply = self.supply(key, &order);
        if let Some(ways) = &supply.ways {
            meter.reads_by(ways.clone());
        }
        let left = order.terms.pull.timeout.saturating_sub(self.worked.get(&key).copied().unwrap_or_default());
        let attempt = attempt_within(left, self.tools.clone(), order.clone(), meter.clone(), supply.clone());
        let abort = self.spawned.spawn(attempt);
        self.running.insert(key, RunningAttempt { meter, supply, earlier, began: order, abort });
    }

    /// How the bytes of an order come now.
    fn supply(&mut self, key: Key, order: &Order) -> Supply {
        let pace = Arc::new(Pace::unlimited());
        pace.set(order.terms.pull.bandwidth);
        let side = self.tools.peers.as_ref().filter(|_| !order.ask.is_question());
        let ways = side.map(|side| {
            let ways = self.ways.entry(key).or_insert_with(|| side.ways(self.news.clone()));
            ways.begin(ways::list(order, self.tickets.get(&key)));
            ways.clone()
        });
        Supply { pace, ways }
    }
}

/// An attempt that ends in time, by itself or with a failure that says what it last waited for.
async fn attempt_within(
    left: Duration,
    tools: PullTools,
    order: Order,
    meter: Meter,
    supply: Supply,
) -> Result<Success, Failure> {
    let minding = async {
        match (&tools.peers, &supply.ways) {
            (Some(side), Some(ways)) => side.mind(ways, &order, &meter).await,
            _ => std::future::pending().await,
        }
    };
    let attempt = async {
        tokio::select! {
            ended = tools.attempt(&order, &meter, &supply) => ended,
            never = minding => match never {},
        }
    };
    let attempt = tokio::time::timeout(left, attempt).await;
    attempt.unwrap_or_else(|_| {
        let last = meter.waiting().or(meter.sourceless()).or(meter.trouble().map(|trouble| trouble.to_string()));
        let last = last.map(|last| format!("; last: {last}")).unwrap_or_default();
        Err(Failure {
            reason: Reason::Timeout,
            message: format!(
                "{}: not done after {} s, the longest that the job allows for one attempt; \
                 the next one goes on where this one stopped{last}",
                order.image,
                order.terms.pull.timeout.as_secs()
            ),
            retryable: true,
            pause: None,
        })
    })
}
