//! The command line: what a user may say, with the help that they read first.

mod values;

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Arg, Args, Parser, Subcommand, ValueEnum};
use stoker_api::labels::{self, LabelSelector};
use stoker_api::{Amount, Share, Span};
use stoker_core::Reference;
use stoker_runtime::{Otherwise, RuntimeWish};

pub(crate) use values::WrongInput;

use crate::install;

/// Puts container images on the nodes that will need them, before they need them.
#[derive(Parser)]
#[command(
    version,
    propagate_version = true,
    subcommand_required = true,
    arg_required_else_help = true,
    after_help = "Examples:\n  \
        stoker demo                                  see it work, on this machine alone\n  \
        stoker up --data ./stoker                    the whole system, no Kubernetes needed\n  \
        stoker pull registry.example/shop/web:v42    onto all nodes of the current cluster\n  \
        stoker why web                               what each node is waiting for\n\n\
        Exit codes: 0 done, 1 it failed, 2 wrong input, 130 interrupted."
)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
    #[command(flatten)]
    pub(crate) cluster: ClusterArgs,
    #[command(flatten)]
    pub(crate) logs: LogArgs,
}

/// Which cluster a command talks to.
#[derive(Args)]
pub(crate) struct ClusterArgs {
    /// The kubeconfig to use [default: $KUBECONFIG, then ~/.kube/config, then the pod's own]
    #[arg(long, global = true, value_name = "FILE", help_heading = "Cluster")]
    pub(crate) kubeconfig: Option<PathBuf>,
    /// The context of the kubeconfig [default: its current one]
    #[arg(long, global = true, value_name = "NAME", help_heading = "Cluster")]
    pub(crate) context: Option<String>,
    /// The namespace of jobs [default: that of the context]
    #[arg(short, long, global = true, value_name = "NAME", value_parser = values::namespace, help_heading = "Cluster")]
    pub(crate) namespace: Option<String>,
}

impl ClusterArgs {
    /// For commands that run or install Stoker: they mean another namespace, and say so.
    fn with_home() -> Vec<Arg> {
        Self::with_namespace(&format!("The namespace of Stoker's own objects [default: {}]", stoker_api::NAMESPACE))
    }

    /// For commands to which the namespace is something else than that of jobs.
    fn with_namespace(help: &str) -> Vec<Arg> {
        let all = Self::options(&CLUSTER);
        all.map(|option| if option.get_id() == "namespace" { option.help(help.to_string()) } else { option }).collect()
    }

    /// For commands that do not heed these: understood, as everywhere, and not in their help.
    fn without(ids: &[&str]) -> Vec<Arg> {
        Self::options(ids).map(|option| option.hide(true)).collect()
    }

    /// These options, to be changed: what a command has of its own is not replaced by what is the same for all.
    fn options(ids: &[&str]) -> impl Iterator<Item = Arg> {
        let all = Self::augment_args(clap::Command::default());
        let some = all.get_arguments().filter(|option| ids.contains(&option.get_id().as_str()));
        some.cloned().collect::<Vec<_>>().into_iter()
    }
}

/// All options of [`ClusterArgs`].
const CLUSTER: [&str; 3] = ["kubeconfig", "context", "namespace"];

/// What is said on standard error.
#[derive(Args)]
pub(crate) struct LogArgs {
    /// How logs are written
    #[arg(long, global = true, value_enum, default_value_t, env = "STOKER_LOG_FORMAT", help_heading = "Logs")]
    pub(crate) log_format: LogFormat,
    /// What is logged: error, warn, info, debug, or a tracing filter [default: depends on the command]
    #[arg(long, global = true, value_name = "LEVEL", env = "STOKER_LOG", value_parser = values::log, help_heading = "Logs")]
    pub(crate) log: Option<String>,
}

/// How logs are written.
#[derive(Clone, Copy, Default, ValueEnum)]
pub(crate) enum LogFormat {
    /// For people
    #[default]
    Text,
    /// For machines, one object a line
    Json,
}

#[derive(Subcommand)]
pub(crate) enum Command {
    Demo(DemoArgs),
    Up(UpArgs),
    Pull(PullArgs),
    Get(GetArgs),
    Why(WhyArgs),
    Delete(DeleteArgs),
    Controller(ControllerArgs),
    Agent(AgentArgs),
    Install(Box<InstallArgs>),
    Uninstall(UninstallArgs),
    Crds(CrdsArgs),
    Verify(VerifyArgs),
    /// Print a completion script for a shell, e.g. `source <(stoker completions bash)`
    #[command(args = ClusterArgs::without(&CLUSTER))]
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
}

impl Command {
    pub(crate) fn default_log_level(&self) -> &'static str {
        // What the client libraries would log, we say ourselves.
        match self {
            Command::Up(_) | Command::Controller(_) | Command::Agent(_) => "info,kube_client=off,kube_runtime=off",
            _ => "warn,kube_client=off,kube_runtime=off",
        }
    }
}

/// See the whole system work on this machine: a registry, three nodes that relay images to each other, one Preheat, verified
#[derive(Args)]
#[command(
    args = ClusterArgs::without(&CLUSTER),
    after_help = "Needs nothing but this binary. Prints what every node received and re-hashes every byte of it.\n\
    At the end it says how much left the registry: about 1.0 times what one node has, by relaying."
)]
pub(crate) struct DemoArgs {
    /// Leave it running at the end and print how to reach it
    #[arg(long)]
    pub(crate) keep: bool,
    /// Where it keeps its data [default: a new directory below the system's temporary one]
    #[arg(long, value_name = "DIR")]
    pub(crate) data: Option<PathBuf>,
}

/// Run the whole system on this machine, without Kubernetes: API, controller, nodes
#[derive(Args)]
#[command(args = ClusterArgs::without(&CLUSTER))]
#[command(after_help = "Each node's images are an OCI image layout: DIR/nodes/NAME/images.\n\
    The kubeconfig is DIR/kubeconfig; kubectl and every stoker command work with it.\n\n\
    Example:\n  stoker up --data ./stoker --nodes 3")]
pub(crate) struct UpArgs {
    /// Where everything is kept
    #[arg(long, value_name = "DIR")]
    pub(crate) data: PathBuf,
    /// How many nodes: node-1, node-2, …
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub(crate) nodes: u16,
    /// Where the API listens, with HTTPS and a bearer token
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:7443", value_parser = values::address)]
    pub(crate) listen: SocketAddr,
    /// Whether nodes read images from each other, so that fewer copies leave the registry
    #[arg(long, value_name = "SWITCH", value_enum, default_value_t = Switch::On)]
    pub(crate) peers: Switch,
    /// Serve Prometheus metrics, /healthz and /readyz there, without TLS or login [default: off]
    #[arg(long, value_name = "ADDRESS:PORT", value_parser = values::address)]
    pub(crate) metrics: Option<SocketAddr>,
    #[command(flatten)]
    pub(crate) node: NodeArgs,
}

/// Where a node's images go, and how much of the node that may take
#[derive(Args, Clone)]
pub(crate) struct NodeArgs {
    /// Where images go: containerd, cri (any runtime, by its own pull), layout (an OCI image layout on disk), or auto:
    /// what answers on this machine [default: layout for `up`, auto for `agent`]
    #[arg(long, value_name = "RUNTIME", help_heading = "Node", value_parser = str::parse::<RuntimeWish>)]
    pub(crate) runtime: Option<RuntimeWish>,
    /// What `auto` means where nothing answers; not for people to say
    #[arg(skip)]
    pub(crate) otherwise: Otherwise,
    /// The runtime's socket, e.g. unix:///run/containerd/containerd.sock [default: the usual ones]
    #[arg(long, value_name = "SOCKET", help_heading = "Node")]
    pub(crate) runtime_endpoint: Option<String>,
    /// Images that are pulled at one time
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=100), help_heading = "Node")]
    pub(crate) max_pulls: u16,
    /// Layers that are fetched at one time, of all images together
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=100), help_heading = "Node")]
    pub(crate) max_layers: u16,
    /// Begin no image that would fill the disk of the images past this, in percent
    #[arg(long, value_name = "PERCENT", default_value_t = 80, value_parser = clap::value_parser!(u8).range(1..=100), help_heading = "Node")]
    pub(crate) max_disk: u8,
    /// Receive no more than this in a second, e.g. 20Mi [default: no limit; spec.bandwidth of the NodePreheat comes first]
    #[arg(long, value_name = "BYTES", value_parser = str::parse::<Amount>, help_heading = "Node")]
    pub(crate) bandwidth: Option<Amount>,
    /// Send no more than this in a second to other nodes, e.g. 20Mi [default: no limit; spec.upload of the NodePreheat comes first]
    #[arg(long, value_name = "BYTES", value_parser = str::parse::<Amount>, help_heading = "Node")]
    pub(crate) upload: Option<Amount>,
    /// Keep what was fetched for a job that was deleted this long, for one that wants it again; it takes at most a tenth of the
    /// disk and 10 GiB, and goes when an image needs the room
    #[arg(long, value_name = "TIME", default_value = "1h", value_parser = str::parse::<Span>, help_heading = "Node")]
    pub(crate) keep_fetched: Span,
    /// How long an order may pull while a namespace without a place waits; for tests
    #[arg(long, value_name = "TIME", default_value = "1m", value_parser = str::parse::<Span>, hide = true)]
    pub(crate) turn: Span,
    /// containerd's hosts.toml files: mirrors, CAs, client certificates [default: what containerd is told to use]
    #[arg(long, value_name = "DIR", help_heading = "Node")]
    pub(crate) registry_hosts: Option<PathBuf>,
    /// The kubelet's CredentialProviderConfig, for registries whose logins come from a program
    #[arg(long, value_name = "FILE", requires = "credential_provider_bin_dir", help_heading = "Node")]
    pub(crate) credential_provider_config: Option<PathBuf>,
    /// Where those programs are
    #[arg(long, value_name = "DIR", requires = "credential_provider_config", help_heading = "Node")]
    pub(crate) credential_provider_bin_dir: Option<PathBuf>,
}

/// Put images on nodes now, and follow it
#[derive(Args)]
#[command(after_help = "Makes a Preheat and follows it. Ctrl-C stops following, not the Preheat.\n\
    Exit code 0 only if every node has every image.\n\n\
    Examples:\n  \
    stoker pull registry.example/shop/web:v42\n  \
    stoker pull web:v42 cart:v7 -l pool=edge --parallelism 20 --timeout 30m\n  \
    stoker pull web:v42 --node shop-17 --name web --no-wait\n  \
    stoker pull web:latest --policy Always --retries 10\n  \
    stoker pull llm:v3 --parallelism 500 --upstream-copies 1\n  \
    stoker pull registry.example/shop/web:v42 --secret regcred")]
pub(crate) struct PullArgs {
    /// registry/repository:tag or registry/repository@sha256:…
    #[arg(required = true, value_name = "IMAGE", value_parser = values::image)]
    pub(crate) images: Vec<String>,
    /// Only this node; may be given more than once
    #[arg(long = "node", value_name = "NAME", value_parser = values::name)]
    pub(crate) nodes: Vec<String>,
    /// Only nodes with these labels, e.g. pool=edge,zone in (a,b)
    #[arg(short = 'l', long, value_name = "SELECTOR", value_parser = labels::parse)]
    pub(crate) selector: Option<LabelSelector>,
    /// Only nodes on which pods of this namespace run that have these labels
    #[arg(long, value_name = "SELECTOR", value_parser = stoker_api::labels::parse)]
    pub(crate) pods: Option<LabelSelector>,
    /// Only so many of these nodes, spread over the zones; from 1 to 5000 [default: all]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(i32).range(1..=5000))]
    pub(crate) replicas: Option<i32>,
    /// A Secret of the namespace with a login for the registry; may be given more than once
    #[arg(long = "secret", value_name = "NAME", value_parser = values::name)]
    pub(crate) secrets: Vec<String>,
    /// How many nodes pull at one time; 0 makes a Preheat that waits until it is given more
    #[arg(
        long,
        value_name = "N",
        default_value_t = 10,
        allow_negative_numbers = true,
        value_parser = clap::value_parser!(i32).range(0..)
    )]
    pub(crate) parallelism: i32,
    /// The most bytes a second that a node receives for it, e.g. 20Mi
    #[arg(long, value_name = "BYTES", value_parser = str::parse::<Amount>)]
    pub(crate) bandwidth: Option<Amount>,
    /// How many nodes may fail, e.g. 3 or 10%; when more have, no other node begins [default: every node is tried]
    #[arg(long, value_name = "N", value_parser = str::parse::<Share>)]
    pub(crate) failure_tolerance: Option<Share>,
    /// Which images a node pulls first, of those that the namespace wants there; from -1000 to 1000
    #[arg(
        long,
        value_name = "N",
        default_value_t = 0,
        allow_negative_numbers = true,
        value_parser = clap::value_parser!(i32).range(-1000..=1000)
    )]
    pub(crate) priority: i32,
    /// IfNotPresent: a node that has the tag is done. Always: the registry is asked which digest the tag means now
    #[arg(long, value_name = "POLICY", value_enum, default_value_t, ignore_case = true)]
    pub(crate) policy: PolicyWord,
    /// Any: from the registry, its mirrors and other nodes. PeersOnly: from nodes that have it, never from the registry
    #[arg(long, value_name = "SOURCE", value_enum, default_value_t, ignore_case = true)]
    pub(crate) source: SourceWord,
    /// How many nodes of a peer group may fetch from the registry, from 1 to 5000; nodes wait rather than break it. Not with
    /// --source PeersOnly [default: one, and another one where a node finds no other way]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(i32).range(1..=5000))]
    pub(crate) upstream_copies: Option<i32>,
    /// How often a failed attempt is repeated on a node, with pauses of 2, 4, 8 … s; from 0 to 100
    #[arg(
        long,
        value_name = "N",
        default_value_t = 3,
        allow_negative_numbers = true,
        value_parser = clap::value_parser!(i32).range(0..=100)
    )]
    pub(crate) retries: i32,
    /// Give up on nodes that are not done by then, e.g. 30m; at least 1s
    #[arg(long, value_name = "TIME", value_parser = values::time)]
    pub(crate) timeout: Option<Span>,
    /// The name of the Preheat; without it one is made up, and the Preheat is deleted an hour after its end
    #[arg(long, value_name = "NAME", value_parser = values::name)]
    pub(crate) name: Option<String>,
    /// Do not follow it
    #[arg(long)]
    pub(crate) no_wait: bool,
}

/// The policy of a pull, as manifests write it.
#[derive(Clone, Copy, Default, ValueEnum)]
pub(crate) enum PolicyWord {
    /// A node that has the tag is done
    #[default]
    #[value(name = "IfNotPresent")]
    IfNotPresent,
    /// The registry is asked which digest the tag means now
    #[value(name = "Always")]
    Always,
}

/// Where images may come from, as manifests write it.
#[derive(Clone, Copy, Default, ValueEnum)]
pub(crate) enum SourceWord {
    /// The registry, its mirrors and other nodes
    #[default]
    #[value(name = "Any")]
    Any,
    /// Other nodes alone
    #[value(name = "PeersOnly")]
    PeersOnly,
}

/// Whether something is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Switch {
    /// It is done
    On,
    /// It is not
    Off,
}

impl Switch {
    /// As a command line writes it.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::On => "on",
            Self::Off => "off",
        }
    }
}

/// Show jobs, one job node by node, or nodes
#[derive(Args)]
#[command(after_help = "NAME is a Preheat; kind/name another project's job, e.g. imagepulljob/base.\n\n\
    Examples:\n  stoker get\n  stoker get web\n  stoker get nodes\n  stoker get imagepulljob/base -o yaml")]
pub(crate) struct GetArgs {
    /// A job, or `nodes`; without it all jobs
    #[arg(value_name = "NAME", value_parser = values::job)]
    pub(crate) name: Option<String>,
    /// How it is printed
    #[arg(short, long, value_enum, default_value_t)]
    pub(crate) output: Output,
    /// Go on, and print what changes and why nodes wait
    #[arg(short, long)]
    pub(crate) watch: bool,
    /// Jobs of all namespaces
    #[arg(short = 'A', long, conflicts_with = "name")]
    pub(crate) all_namespaces: bool,
}

/// How objects are printed.
#[derive(Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Output {
    /// A table
    #[default]
    Table,
    /// A table with more columns
    Wide,
    /// The raw objects
    Json,
    /// The raw objects
    Yaml,
}

/// Say what each node of a job is waiting for
#[derive(Args)]
#[command(after_help = "Computed from the cluster's objects with the controller's own rules, not stored.\n\n\
    Examples:\n  stoker why web\n  stoker why web shop-17\n  stoker why imagepulljob/base\n  stoker why nodeimage/node-1")]
pub(crate) struct WhyArgs {
    /// A Preheat, or kind/name; nodeimage/NODE for the tags in the NodeImage of a node that wait or have failed
    #[arg(value_parser = values::job_or_node_image)]
    pub(crate) name: String,
    /// Only this node
    #[arg(value_parser = values::name)]
    pub(crate) node: Option<String>,
}

/// Delete jobs: their pulls stop, images stay
#[derive(Args)]
#[command(after_help = "Every one is tried; the exit code is 0 only if all were deleted.\n\n\
    Examples:\n  stoker delete web\n  stoker delete web cart imagepulljob/base")]
pub(crate) struct DeleteArgs {
    /// A Preheat, or kind/name
    #[arg(required = true, value_name = "NAME", value_parser = values::job)]
    pub(crate) names: Vec<String>,
}

/// Run the controller against a cluster
#[derive(Args)]
#[command(args = ClusterArgs::with_home())]
#[command(
    after_help = "In a cluster `stoker install` has it run as a Deployment. Several may run: one leads, others stand by."
)]
pub(crate) struct ControllerArgs {
    /// Never ask more writes a second than this of the API server
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) max_writes_per_second: u32,
    /// How many nodes must hear the same digest of a tag from the registry before others pull it; with 1 every agent is
    /// trusted to say what all nodes pull
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u8).range(1..=2))]
    pub(crate) digest_witnesses: u8,
    /// Whether nodes read images from each other, so that fewer copies leave the registry
    #[arg(long, value_name = "SWITCH", value_enum, default_value_t = Switch::Off)]
    pub(crate) peers: Switch,
    /// APIs of other projects that are handed over while the original controller runs: kruise=whole if it goes on for other kinds alone,
    /// kruise=half if it keeps the jobs and this controller only has the images pulled. Its Lease is ignored then
    #[arg(long, value_name = "NAME=HOW", value_delimiter = ',', value_parser = install::handed_over)]
    pub(crate) handed_over: Vec<install::ServedDialect>,
    /// Also follow rollouts of workloads, e.g. kruise-rollouts: pods that are still to be updated find their image on their node. Reads
    /// the workloads of all namespaces [default: none]
    #[arg(long, value_name = "NAME", value_delimiter = ',', value_parser = install::with_workloads)]
    pub(crate) serve: Vec<&'static str>,
    /// Serve Prometheus metrics, /healthz and /readyz there, without TLS or login [default: off]
    #[arg(long, value_name = "ADDRESS:PORT", value_parser = values::address)]
    pub(crate) metrics: Option<SocketAddr>,
    /// Serve /healthz and /readyz there too, whoever holds the connections for metrics [default: off]
    #[arg(long, value_name = "ADDRESS:PORT", value_parser = values::address)]
    pub(crate) probes: Option<SocketAddr>,
}

/// Where agents serve images to other nodes, unless they are told otherwise.
pub(crate) const PEER_PORT: u16 = 7447;

/// Run the agent of one node against a cluster
#[derive(Args)]
#[command(args = ClusterArgs::with_home())]
#[command(after_help = "In a cluster `stoker install` has it run on every node as a DaemonSet.\n\n\
    Example:\n  stoker agent --node shop-17 --data /var/lib/stoker")]
pub(crate) struct AgentArgs {
    /// The name of the Node that this agent serves
    #[arg(long, env = "NODE_NAME", value_name = "NAME", value_parser = values::name)]
    pub(crate) node: String,
    /// Where images are while they come; with --runtime layout also where they go
    #[arg(long, value_name = "DIR")]
    pub(crate) data: PathBuf,
    #[command(flatten)]
    pub(crate) settings: NodeArgs,
    /// Where other nodes read images from this one, on all its addresses; 0: they do not, and this one reads from no other node
    #[arg(long, value_name = "PORT", default_value_t = PEER_PORT, help_heading = "Node")]
    pub(crate) peer_port: u16,
    /// Serve Prometheus metrics, /healthz and /readyz there, without TLS or login [default: off]
    #[arg(long, value_name = "ADDRESS:PORT", value_parser = values::address)]
    pub(crate) metrics: Option<SocketAddr>,
    /// Serve /healthz and /readyz there too, whoever holds the connections for metrics [default: off]
    #[arg(long, value_name = "ADDRESS:PORT", value_parser = values::address)]
    pub(crate) probes: Option<SocketAddr>,
}

/// Print everything that a cluster needs to run Stoker, for `kubectl apply -f -`
#[derive(Args)]
#[command(
    args = ClusterArgs::with_home(),
    after_help = "Writes nothing to the cluster. Its version is checked, and that nothing of somebody else would be\n\
    replaced: CRDs, a namespace that was there before. One that cannot be checked is refused.\n\
    --offline looks at none, and prints the Namespace even if there is one of somebody else: it would be\n\
    Stoker's then.\n\n\
    Examples:\n  \
    stoker install --image registry.example/stoker:v1 | kubectl apply -f -\n  \
    stoker install --image registry.example/stoker:v1 --dialects kruise | kubectl apply -f -\n  \
    stoker install --image registry.example/stoker:v1 \\\n      \
    --runtime-endpoint unix:///run/k3s/containerd/containerd.sock \\\n      \
    --runtime-root /var/lib/rancher/k3s/agent/containerd \\\n      \
    --runtime-config /var/lib/rancher/k3s/agent/etc/containerd | kubectl apply -f -"
)]
pub(crate) struct InstallArgs {
    /// The image of controller and agents, as `cargo xtask image` makes it; the default is nowhere
    #[arg(long, value_name = "REFERENCE", default_value = install::NO_IMAGE)]
    pub(crate) image: Reference,
    /// A Secret of Stoker's namespace with the login for that image
    #[arg(long, value_name = "NAME", value_parser = values::name)]
    pub(crate) image_pull_secret: Option<String>,
    /// APIs of other projects to serve, with their CRDs, e.g. kruise; kruise=whole where OpenKruise goes on for other kinds and has
    /// handed these over; kruise=half where OpenKruise keeps jobs and NodeImages and Stoker only pulls; kruise,kruise-rollouts pulls
    /// images ahead while workloads are updated; ofen for ofen's kinds [default: none]
    #[arg(long, value_name = "NAME[=HOW]", value_delimiter = ',', value_parser = install::dialect)]
    pub(crate) dialects: Vec<install::ServedDialect>,
    /// The namespaces whose Secrets the controller may read, for `pullSecrets` of jobs there [default: all]
    #[arg(long, value_name = "NAMESPACE", value_delimiter = ',', value_parser = values::namespace)]
    pub(crate) secrets_from: Vec<String>,
    /// Let everybody make jobs who may edit a namespace, by Kubernetes' roles `edit` and `admin`; without it, those to whom
    /// you bind the ClusterRole stoker-edit
    #[arg(long)]
    pub(crate) aggregate_to_edit: bool,
    /// How many controllers run; one leads, others stand by
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u8).range(1..=10))]
    pub(crate) replicas: u8,
    /// How many nodes must hear the same digest of a tag from the registry before others pull it; with 1 every agent is
    /// trusted to say what all nodes pull
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u8).range(1..=2))]
    pub(crate) digest_witnesses: u8,
    /// Whether nodes read images from each other, so that fewer copies leave the registry; agents then listen on port 7447 of their
    /// nodes [default: on, or as the controller that is there has it]
    #[arg(long, value_name = "SWITCH", value_enum)]
    pub(crate) peers: Option<Switch>,
    /// Do not look at any cluster
    #[arg(long)]
    pub(crate) offline: bool,
    #[command(flatten)]
    pub(crate) host: HostArgs,
}

/// What agents find where on a node. A directory may hold `$(NODE_NAME)`; then the one above it is mounted
#[derive(Args)]
pub(crate) struct HostArgs {
    /// The runtime's socket on nodes; needed wherever it is not in /run/containerd [default: what answers there]
    #[arg(long, value_name = "SOCKET", value_parser = install::socket, help_heading = "Node")]
    pub(crate) runtime_endpoint: Option<String>,
    /// Where the runtime keeps images and snapshots
    #[arg(long, value_name = "DIR", default_value = "/var/lib/containerd", value_parser = install::directory, help_heading = "Node")]
    pub(crate) runtime_root: String,
    /// Where the runtime's own settings are, certs.d among them
    #[arg(long, value_name = "DIR", default_value = "/etc/containerd", value_parser = install::directory, help_heading = "Node")]
    pub(crate) runtime_config: String,
    /// Where agents keep their ledger, and layers while they come
    #[arg(long, value_name = "DIR", default_value = "/var/lib/stoker", value_parser = install::directory, help_heading = "Node")]
    pub(crate) data: String,
    /// Another directory that agents must see, such as one of CAs; may be given more than once
    #[arg(long = "host-dir", value_name = "DIR", value_parser = install::directory, help_heading = "Node")]
    pub(crate) host_dirs: Vec<String>,
    /// Where agents serve metrics, on the node's own network
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:7480", value_parser = values::address, help_heading = "Node")]
    pub(crate) agent_metrics: SocketAddr,
    /// Where the kubelet probes agents, on the node's own network
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:7481", value_parser = values::address, help_heading = "Node")]
    pub(crate) agent_probes: SocketAddr,
    /// Agents begin no image that would fill the disk of the images past this, in percent [default: 80]
    #[arg(long, value_name = "PERCENT", value_parser = clap::value_parser!(u8).range(1..=100), help_heading = "Node")]
    pub(crate) max_disk: Option<u8>,
    /// Images that a node pulls at one time [default: 3]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=100), help_heading = "Node")]
    pub(crate) max_pulls: Option<u16>,
    /// A node receives no more than this in a second, e.g. 20Mi [default: no limit]
    #[arg(long, value_name = "BYTES", value_parser = str::parse::<Amount>, help_heading = "Node")]
    pub(crate) bandwidth: Option<Amount>,
    /// A node sends no more than this in a second to other nodes, e.g. 20Mi [default: no limit]
    #[arg(long, value_name = "BYTES", value_parser = str::parse::<Amount>, help_heading = "Node")]
    pub(crate) upload: Option<Amount>,
    /// The kubelet's CredentialProviderConfig
    #[arg(long, value_name = "FILE", requires = "credential_provider_bin_dir", value_parser = install::directory, help_heading = "Node")]
    pub(crate) credential_provider_config: Option<String>,
    /// Where its programs are
    #[arg(long, value_name = "DIR", requires = "credential_provider_config", value_parser = install::directory, help_heading = "Node")]
    pub(crate) credential_provider_bin_dir: Option<String>,
}

/// Remove everything that `stoker install` made from a cluster; images stay on nodes
#[derive(Args)]
#[command(args = ClusterArgs::with_namespace("Only if Stoker is in this namespace and no other [default: wherever it is]"))]
#[command(after_help = "What is Stoker's is found by its labels, in whatever namespace it was installed.\n\
    A namespace that was there before Stoker stays.\n\
    Refused while there are jobs, or objects of others in Stoker's own namespace, unless --yes is given.")]
pub(crate) struct UninstallArgs {
    /// Even if jobs, and whatever else is in Stoker's namespace, are deleted with it
    #[arg(long, short)]
    pub(crate) yes: bool,
    /// Give up on an object that is not gone after this
    #[arg(long, value_name = "TIME", default_value = "2m", value_parser = values::time)]
    pub(crate) timeout: Span,
}

/// Print the CustomResourceDefinitions of Stoker's own kinds, and nothing else that a cluster needs
#[derive(Args)]
#[command(args = ClusterArgs::without(&CLUSTER))]
#[command(after_help = "`stoker install` prints these and everything else.")]
pub(crate) struct CrdsArgs {
    /// Those of these other projects as well, e.g. kruise; never where that project itself is installed [default: none]
    #[arg(long, value_name = "NAME", value_delimiter = ',', value_parser = install::definitions_of)]
    pub(crate) dialects: Vec<install::ServedDialect>,
}

/// Hash every stored image again, and say what is damaged or missing
#[derive(Args)]
#[command(args = ClusterArgs::without(&CLUSTER))]
#[command(
    after_help = "Changes nothing, and may be used while Stoker runs. It looks at OCI image layouts, not at images in containerd.\n\
    Exit codes: 0 everything is right, 1 something is damaged or missing, 2 wrong usage.\n\n\
    Example:\n  stoker verify --data ./stoker"
)]
pub(crate) struct VerifyArgs {
    /// The --data directory of `stoker up` or of `stoker agent --runtime layout`, or an OCI image layout
    #[arg(long, value_name = "DIR")]
    pub(crate) data: PathBuf,
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory as _;

    #[test]
    fn options_of_all_commands_stand_before_and_behind_them() {
        for line in ["-n x get", "get -n x", "-n x install", "install -n x", "--namespace=x agent --node a --data b"] {
            let words = ["stoker"].into_iter().chain(line.split(' '));
            assert_eq!(Cli::parse_from(words).cluster.namespace.as_deref(), Some("x"), "{line}");
        }
        let cli = Cli::parse_from(["stoker", "demo", "--context", "c", "--log", "debug"]);
        assert_eq!((cli.cluster.context.as_deref(), cli.logs.log.as_deref()), (Some("c"), Some("debug")));
    }

    #[test]
    fn every_help_text_reads_well() {
        let mut cli = Cli::command().term_width(100);
        cli.build();
        let mut text = cli.render_long_help().to_string();
        for command in cli.clone().get_subcommands_mut() {
            if command.get_name() != "help" {
                let name = command.get_name().to_string();
                text += &format!("\n=== {name}\n{}", command.render_help());
            }
        }
        cli.debug_assert();
        insta::assert_snapshot!(text);
    }
}
