//! The one binary. Exit codes: 0 done, 1 it failed, 2 wrong input, 130 interrupted.

mod cli;
mod clock;
mod connect;
mod delete;
mod demo;
mod follow;
mod get;
mod install;
mod jobs;
mod logs;
mod metrics;
mod node;
mod out;
mod pull;
mod roles;
mod screen;
mod system;
mod table;
mod up;
mod verify;
mod why;

use std::process::ExitCode;

use clap::{CommandFactory as _, Parser as _};
use cli::{Cli, Command, WrongInput};
use out::errln;

fn main() -> ExitCode {
    let cli = Cli::parse();
    logs::start(&cli.logs, cli.command.default_log_level());
    let result = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => {
            let result = runtime.block_on(run(cli));
            // Work that was cut off (a blocking read, a lookup) is not waited for.
            runtime.shutdown_background();
            result
        }
        Err(problem) => Err(anyhow::Error::new(problem).context("cannot start the async runtime")),
    };
    result.unwrap_or_else(|problem| {
        errln!("error: {problem:#}");
        match problem.is::<WrongInput>() {
            true => ExitCode::from(2),
            false => ExitCode::FAILURE,
        }
    })
}

async fn run(cli: Cli) -> anyhow::Result<ExitCode> {
    match cli.command {
        Command::Demo(args) => demo::run(args).await,
        Command::Up(args) => up::run(args).await,
        Command::Controller(args) => roles::controller(&cli.cluster, args).await,
        Command::Agent(args) => roles::agent(&cli.cluster, args).await,
        Command::Pull(args) => pull::run(&cli.cluster, args).await,
        Command::Get(args) => get::run(&cli.cluster, args).await,
        Command::Why(args) => why::run(&cli.cluster, args).await,
        Command::Delete(args) => delete::run(&cli.cluster, args).await,
        Command::Install(args) => install::run(&cli.cluster, *args).await,
        Command::Uninstall(args) => install::uninstall(&cli.cluster, args).await,
        Command::Crds(args) => install::crds(&args),
        Command::Verify(args) => verify::run(args).await,
        Command::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "stoker", &mut script);
            out::outln!("{}", String::from_utf8_lossy(&script).trim_end());
            Ok(ExitCode::SUCCESS)
        }
    }
}
