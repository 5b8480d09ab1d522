//! Which nodes a job means: label requirements and names. Pure matching, no parsing.

use std::collections::{BTreeMap, BTreeSet};

use crate::model::{Job, Node};

/// How a requirement compares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operator {
    /// The label's value is one of the values.
    In,
    /// There is no such label, or its value is none of the values.
    NotIn,
    /// There is such a label.
    Exists,
    /// There is no such label.
    DoesNotExist,
}

/// One condition on one label.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Requirement {
    /// The label.
    pub key: String,
    /// How it is compared.
    pub operator: Operator,
    /// With what.
    pub values: BTreeSet<String>,
}

impl Requirement {
    fn holds(&self, value: Option<&str>) -> bool {
        let among = value.is_some_and(|value| self.values.contains(value));
        match self.operator {
            Operator::In => among,
            Operator::NotIn => !among,
            Operator::Exists => value.is_some(),
            Operator::DoesNotExist => value.is_none(),
        }
    }
}

/// All requirements must hold; none at all takes every node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selector(pub Vec<Requirement>);

impl Selector {
    /// Whether these labels satisfy it.
    pub fn matches(&self, labels: &BTreeMap<String, String>) -> bool {
        self.holds_for(|key| labels.get(key).map(String::as_str))
    }

    /// Whether labels satisfy it of which these are the values by key.
    pub fn holds_for<'a>(&self, value: impl Fn(&str) -> Option<&'a str>) -> bool {
        self.0.iter().all(|requirement| requirement.holds(value(&requirement.key)))
    }
}

/// Whether the job wants its images on this node.
pub fn selects(job: &Job, node: &Node) -> bool {
    job.names.as_ref().is_none_or(|names| names.contains_key(&node.name)) && could_have(job, node)
}

/// Whether the job could want its images on this node, if it were one of those that it names.
pub(crate) fn could_have(job: &Job, node: &Node) -> bool {
    (job.foreign_nodes || !node.foreign) && job.selector.matches(&node.labels)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requirements() {
        let labels = BTreeMap::from([("zone".to_string(), "a".to_string())]);
        let cases = [
            (Operator::In, "zone", &["a", "b"][..], true),
            (Operator::In, "zone", &["b"], false),
            (Operator::In, "pool", &["a"], false),
            (Operator::NotIn, "zone", &["a"], false),
            (Operator::NotIn, "pool", &["a"], true),
            (Operator::Exists, "zone", &[], true),
            (Operator::Exists, "pool", &[], false),
            (Operator::DoesNotExist, "zone", &[], false),
            (Operator::DoesNotExist, "pool", &[], true),
        ];
        for (operator, key, values, expected) in cases {
            let values = values.iter().map(|v| v.to_string()).collect();
            let selector = Selector(vec![Requirement { key: key.into(), operator, values }]);
            assert_eq!(selector.matches(&labels), expected, "{selector:?}");
        }
        assert!(Selector::default().matches(&labels));
    }
}
