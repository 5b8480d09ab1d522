//! The arguments of `cargo xtask cluster`. Words come in, an order goes out, or a sentence that says what is wrong.

use std::path::PathBuf;

use anyhow::{Context as _, bail};

use super::place::{Fleet, MOST_FAKE_NODES, MOST_NODES, Nodes};

/// How it is used.
const USAGE: &str = "\
Usage: cargo xtask cluster COMMAND [--dir DIR]

  up [--nodes N]               2 when not said; odd ones have Debian's containerd, even ones 2.2
  up --fake-nodes N [--pull-time TIME] [--fail-every N] [--binary FILE]
                               etcd and API server only, with N Nodes and their agents, all in one process, on runtimes that
                               pull nothing; every pull takes TIME (100ms), and on every Nth node it fails. FILE is
                               their program, if it is built already
  down                         removes every process, namespace, cgroup and file of it
  status                       which parts live; fails when one does not
  kubeconfig                   prints the path of the administrator's
  exec [--node NAME] -- CMD    runs CMD in the control plane's network, with KUBECONFIG set and kubectl on the PATH;
                               with --node inside of that node
  stop PART | start PART       ends a part as a crash would (its name as in `status`), starts it again";

/// What to do, and where.
#[derive(Debug, PartialEq)]
pub(crate) struct Options {
    pub(crate) dir: Option<PathBuf>,
    pub(crate) order: Order,
}

/// What to do.
#[derive(Debug, PartialEq)]
pub(crate) enum Order {
    Up { nodes: Option<Nodes> },
    Down,
    Status,
    Kubeconfig,
    Exec { machine: Option<String>, command: Vec<String> },
    Stop { part: String },
    Start { part: String },
}

impl Options {
    /// Reads the words after `cluster`.
    pub(crate) fn parse(args: &[&str]) -> anyhow::Result<Self> {
        let (ours, command) = match args.iter().position(|word| *word == "--") {
            Some(end) => (&args[..end], args[end + 1..].iter().map(|word| word.to_string()).collect()),
            None => (args, Vec::new()),
        };
        let (mut dir, mut nodes, mut machine, mut names) = (None, None, None, Vec::new());
        let (mut fake, mut pull_time, mut fail_every, mut binary) = (None, None, None, None);
        let mut words = ours.iter();
        while let Some(word) = words.next() {
            let mut value = || words.next().with_context(|| format!("{word} needs a value\n\n{USAGE}"));
            match *word {
                "--dir" => dir = Some(PathBuf::from(value()?)),
                "--nodes" => nodes = Some(count(word, value()?, MOST_NODES)?),
                "--fake-nodes" => fake = Some(count(word, value()?, MOST_FAKE_NODES)?),
                "--pull-time" => pull_time = Some(value()?.to_string()),
                "--fail-every" => fail_every = Some(count(word, value()?, MOST_FAKE_NODES)?),
                "--binary" => binary = Some(value()?.to_string()),
                "--node" => machine = Some(value()?.to_string()),
                option if option.starts_with('-') => bail!("unknown option {option}\n\n{USAGE}"),
                name => names.push(name),
            }
        }
        let mut nodes = match (nodes, fake) {
            (_, None) if pull_time.is_some() || fail_every.is_some() || binary.is_some() => {
                bail!("--pull-time, --fail-every and --binary go with --fake-nodes\n\n{USAGE}")
            }
            (nodes, None) => nodes.map(Nodes::Real),
            (None, Some(nodes)) => Some(Nodes::Fake(Fleet { nodes, pull_time, fail_every, binary })),
            _ => bail!("a cluster has real nodes or fake ones, not both\n\n{USAGE}"),
        };
        let order = match names.as_slice() {
            ["up"] => Order::Up { nodes: nodes.take() },
            ["down"] => Order::Down,
            ["status"] => Order::Status,
            ["kubeconfig"] => Order::Kubeconfig,
            ["exec"] if !command.is_empty() => Order::Exec { machine: machine.take(), command: command.clone() },
            ["exec"] => bail!("exec needs a command after `--`\n\n{USAGE}"),
            ["stop", part] => Order::Stop { part: part.to_string() },
            ["start", part] => Order::Start { part: part.to_string() },
            _ => bail!("unknown: cluster {}\n\n{USAGE}", names.join(" ")),
        };
        if nodes.is_some() || machine.is_some() || (!command.is_empty() && !matches!(order, Order::Exec { .. })) {
            bail!("this command does not take all of these\n\n{USAGE}");
        }
        Ok(Self { dir, order })
    }
}

fn count(option: &str, word: &str, most: usize) -> anyhow::Result<usize> {
    match word.parse() {
        Ok(count) if (1..=most).contains(&count) => Ok(count),
        _ => bail!("{option} {word}: give a number from 1 to {most}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_become_orders() {
        let parse = |text: &str| Options::parse(&text.split(' ').collect::<Vec<_>>());
        let order = |text: &str| parse(text).unwrap().order;
        assert_eq!(order("up"), Order::Up { nodes: None });
        assert_eq!(parse("up --nodes 3 --dir /x").unwrap().dir, Some(PathBuf::from("/x")));
        assert_eq!(order("up --nodes 3"), Order::Up { nodes: Some(Nodes::Real(3)) });
        let fleet = Fleet { nodes: 5000, pull_time: None, fail_every: None, binary: None };
        assert_eq!(order("up --fake-nodes 5000"), Order::Up { nodes: Some(Nodes::Fake(fleet)) });
        let fleet = Fleet {
            nodes: 20,
            pull_time: Some("2s".to_string()),
            fail_every: Some(10),
            binary: Some("/x".to_string()),
        };
        let words = "up --fake-nodes 20 --pull-time 2s --fail-every 10 --binary /x";
        assert_eq!(order(words), Order::Up { nodes: Some(Nodes::Fake(fleet)) });
        let command = vec!["ls".to_string(), "--nodes".to_string()];
        assert_eq!(order("exec -- ls --nodes"), Order::Exec { machine: None, command: command.clone() });
        assert_eq!(order("exec --node n1 -- ls --nodes"), Order::Exec { machine: Some("n1".to_string()), command });
        assert_eq!(order("stop n1/kubelet"), Order::Stop { part: "n1/kubelet".to_string() });
        for wrong in ["up --nodes 0", "up --nodes 51", "up --nodes", "down --nodes 2", "exec", "exec --", "status -- x"]
        {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
        for wrong in ["up --fake-nodes 0", "up --fake-nodes 2 --nodes 2", "up --pull-time 1s", "down --fake-nodes 2"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
        for wrong in ["up --nodes 2 --fail-every 2", "up --fake-nodes 9 --fail-every 0", "up --nodes 2 --binary /x"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
        for wrong in ["", "fly", "up up", "up --node n1", "--help", "stop"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}
