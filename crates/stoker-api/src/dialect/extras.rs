//! What an object of another project asks of Stoker beyond what its own API can say, by annotations. One that cannot be read is
//! ignored, and said: no schema sees annotations.

use kube_core::dynamic::DynamicObject;
use stoker_core::Job;

use crate::amount::Amount;
use crate::share::Share;

const BANDWIDTH: &str = "stoker.dev/bandwidth";
const FAILURE_TOLERANCE: &str = "stoker.dev/failure-tolerance";
const PRIORITY: &str = "stoker.dev/priority";

/// What the annotations of an object ask for, each as it could be read.
#[derive(Default)]
pub(crate) struct Extras {
    bandwidth: Option<Amount>,
    tolerance: Option<Share>,
    priority: Option<i32>,
    /// Why some of them are ignored.
    pub(crate) problems: Vec<String>,
}

impl Extras {
    /// How the names of all of them begin.
    pub(crate) const PREFIX: &str = "stoker.dev/";

    /// Reads them.
    pub(crate) fn of(object: &DynamicObject) -> Self {
        let mut extras = Self::default();
        for (name, value) in object.metadata.annotations.iter().flatten() {
            let problem = match name.as_str() {
                BANDWIDTH => value.parse().map(|read| extras.bandwidth = Some(read)).map_err(|bad| format!("{bad}")),
                FAILURE_TOLERANCE => {
                    value.parse().map(|read| extras.tolerance = Some(read)).map_err(|bad| format!("{bad}"))
                }
                PRIORITY => priority(value).map(|read| extras.priority = Some(read)),
                _ => Ok(()),
            };
            extras.problems.extend(problem.err().map(|bad| format!("the annotation {name} is ignored: {bad}")));
        }
        extras
    }

    /// The job with what they ask for.
    pub(crate) fn apply(&self, job: &mut Job) {
        job.pull.bandwidth = self.bandwidth.map(|bandwidth| bandwidth.0);
        job.pull.priority = self.priority.unwrap_or_default();
        job.tolerance = self.tolerance.map(Share::tolerance);
    }

    /// Whether they ask that so many of so many nodes may fail.
    pub(crate) fn allows(&self, failed: u32, nodes: u32) -> bool {
        let [failed, nodes] = [failed, nodes].map(|count| usize::try_from(count).unwrap_or(usize::MAX));
        self.tolerance.is_some_and(|tolerance| tolerance.tolerance().allows(failed, nodes))
    }
}

fn priority(text: &str) -> Result<i32, String> {
    let number = text.parse().ok().filter(|number| (-1000..=1000).contains(number));
    number.ok_or_else(|| format!("`{text:.40}` is not a whole number between -1000 and 1000"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn extras(annotations: serde_json::Value) -> Extras {
        let object = json!({ "metadata": { "name": "j", "annotations": annotations } });
        Extras::of(&serde_json::from_value(object).unwrap())
    }

    #[test]
    fn annotations_that_can_be_read_count_and_others_are_said() {
        let all = extras(json!({
            BANDWIDTH: "20Mi", FAILURE_TOLERANCE: "10%", PRIORITY: "-5", "apps.kruise.io/x": "y", "stoker.dev/other": "z",
        }));
        assert_eq!(all.bandwidth, Some(Amount(20 << 20)));
        assert_eq!(all.tolerance, Some(Share { number: 10, percent: true }));
        assert_eq!((all.priority, all.problems.len()), (Some(-5), 0));
        let bad = extras(json!({ BANDWIDTH: "much", FAILURE_TOLERANCE: "101%", PRIORITY: "1001" }));
        assert_eq!((bad.bandwidth, bad.tolerance, bad.priority), (None, None, None));
        assert_eq!(
            bad.problems,
            [
                "the annotation stoker.dev/bandwidth is ignored: `much` is not an amount of bytes: write a whole number, with Ki, Mi, \
                 Gi, Ti, k, M, G or T if you like, such as 20Mi",
                "the annotation stoker.dev/failure-tolerance is ignored: `101%` is neither a number of nodes nor a percentage of them: \
                 write a whole number such as 3, or 10%",
                "the annotation stoker.dev/priority is ignored: `1001` is not a whole number between -1000 and 1000",
            ]
        );
    }
}
