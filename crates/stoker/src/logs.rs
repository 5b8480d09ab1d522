//! Logs on standard error, for people or for machines.

use std::io::IsTerminal as _;

use tracing_subscriber::EnvFilter;

use crate::cli::{LogFormat, Logs};

/// Starts logging; a filter that cannot be read is said and the default taken.
pub(crate) fn start(logs: &Logs, default: &str) {
    let filter = logs.log.as_deref().and_then(|filter| match EnvFilter::try_new(filter) {
        Ok(filter) => Some(filter),
        Err(problem) => {
            eprintln!("warning: --log {filter}: {problem}; using {default}");
            None
        }
    });
    let filter = filter.unwrap_or_else(|| EnvFilter::new(default));
    let colour = std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_target(false);
    match logs.log_format {
        LogFormat::Text => builder.with_ansi(colour).init(),
        LogFormat::Json => builder.json().flatten_event(true).init(),
    }
}
