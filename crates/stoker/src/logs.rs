//! Logs on standard error, for people or for machines.

use std::io::IsTerminal as _;

use tracing_subscriber::EnvFilter;

use crate::cli::{LogFormat, Logs};

/// Starts logging. That the filter can be read was checked with the rest of the command line.
pub(crate) fn start(logs: &Logs, default: &str) {
    let filter = EnvFilter::new(logs.log.as_deref().unwrap_or(default));
    let colour = std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_target(false);
    match logs.log_format {
        LogFormat::Text => builder.with_ansi(colour).init(),
        LogFormat::Json => builder.json().flatten_event(true).init(),
    }
}
