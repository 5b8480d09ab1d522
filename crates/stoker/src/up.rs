//! `stoker up`: the whole system in the foreground.

use std::process::ExitCode;

use anyhow::bail;
use stoker_runtime::{Otherwise, RuntimeWish};
use stoker_transfer::Platform;
use tokio::signal::unix::{SignalKind, signal};

use crate::cli::{Switch, UpArgs, WrongInput};
use crate::out::{errln, out};
use crate::system::{RunningSystem, SystemOptions};

/// Runs until Ctrl-C or SIGTERM.
pub(crate) async fn run(mut args: UpArgs) -> anyhow::Result<ExitCode> {
    // The embedded default needs nothing on the machine.
    args.node.runtime.get_or_insert(RuntimeWish::Layout);
    args.node.otherwise = Otherwise::Layout;
    if args.nodes > 1 && args.node.wish() != RuntimeWish::Layout {
        let wish = args.node.wish();
        bail!(WrongInput(format!("--runtime {wish} is this machine's own, which is one node; leave --nodes out")));
    }
    let options = SystemOptions {
        data: args.data,
        nodes: args.nodes,
        listen: args.listen,
        peers: args.peers == Switch::On,
        metrics: args.metrics,
        platform: Platform::host(),
        clock: crate::clock::system(),
        node: args.node,
    };
    let mut system = RunningSystem::start(options).await?;
    out!("{}", greeting(&system));
    system.run_until(stopped()).await??;
    errln!("stopping");
    system.stop().await?;
    Ok(ExitCode::SUCCESS)
}

/// Ends at Ctrl-C or SIGTERM.
pub(crate) async fn stopped() -> std::io::Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    tokio::select! {
        result = tokio::signal::ctrl_c() => result,
        _ = terminate.recv() => Ok(()),
    }
}

/// How to reach it, with the first commands to try.
pub(crate) fn greeting(system: &RunningSystem) -> String {
    let kubeconfig = system.kubeconfig.display();
    let nodes = match system.nodes.as_slice() {
        [(only, _)] => only.clone(),
        [(first, _), .., (last, _)] => format!("{first} … {last}"),
        [] => String::new(),
    };
    let metrics = system.metrics.map(|addr| format!("Metrics at http://{addr}/metrics\n\n")).unwrap_or_default();
    format!(
        "Stoker is up at https://{} with {nodes}. In another terminal:\n\n  \
         export KUBECONFIG={kubeconfig}\n  \
         stoker pull IMAGE        put an image on all nodes, and follow it\n  \
         stoker get               jobs; `stoker get nodes` for nodes\n  \
         kubectl get preheats     kubectl works too\n\n\
         {metrics}\
         Ctrl-C stops it.\n",
        system.addr
    )
}
