//! Logs on standard error, for people or for machines. What others wrote is escaped in them, as in everything that is printed.

use std::fmt::{Debug, Write as _};
use std::io::{self, IsTerminal as _};

use stoker_core::text;
use tracing::field::Field;
use tracing::{Metadata, Subscriber};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::field::MakeExt as _;
use tracing_subscriber::filter::filter_fn;
use tracing_subscriber::fmt::format::{Writer, debug_fn};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

use crate::cli::{LogArgs, LogFormat};
use crate::out;

/// Starts logging. That the filter can be read was checked with the rest of the command line.
pub(crate) fn start(logs: &LogArgs, default: &str) {
    subscriber(logs, default, io::stderr).init();
}

fn subscriber<W: io::Write + 'static>(
    logs: &LogArgs,
    default: &str,
    writer: impl Fn() -> W + Send + Sync + 'static,
) -> Box<dyn Subscriber + Send + Sync> {
    let filter = EnvFilter::new(logs.log.as_deref().unwrap_or(default));
    let colour = io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_target(false);
    // Otherwise a log that cannot be written is told on standard error, and that panics where standard error is what was closed.
    let builder = builder.log_internal_errors(false);
    match logs.log_format {
        LogFormat::Text => {
            // Field by field: the colours of the formatter itself are escapes, too.
            let builder = builder.with_writer(writer).with_ansi(colour);
            Box::new(builder.fmt_fields(debug_fn(field).delimited(" ")).finish().with(filter_fn(holds_no_bodies)))
        }
        LogFormat::Json => {
            let builder = builder.json().flatten_event(true).with_writer(move || Escaped(writer()));
            Box::new(builder.finish().with(filter_fn(holds_no_bodies)))
        }
    }
}

/// The client of the API server logs the whole body of an answer that it cannot read, and that may be a Secret. What it logs is never
/// shown, whatever filter was asked for.
fn holds_no_bodies(metadata: &Metadata<'_>) -> bool {
    !metadata.target().starts_with("kube_client")
}

fn field(writer: &mut Writer<'_>, field: &Field, value: &dyn Debug) -> std::fmt::Result {
    let mut shown = String::new();
    write!(shown, "{value:?}")?;
    match field.name() {
        "message" => writer.write_str(&text::escape(&shown)),
        name => write!(writer, "{name}={}", text::escape(&shown)),
    }
}

/// Writes whole lines, with everything escaped that JSON leaves as it is.
struct Escaped<W>(W);

impl<W: io::Write> io::Write for Escaped<W> {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.0.write_all(out::lines(&String::from_utf8_lossy(line)).as_bytes())?;
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;
    use std::sync::{Arc, Mutex};

    #[derive(Clone, Default)]
    struct Kept(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Kept {
        fn write(&mut self, text: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(text)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn no_filter_shows_the_bodies_that_the_client_logs() {
        for log in [None, Some("info"), Some("trace"), Some("kube_client=trace,stoker=info"), Some("[HTTP]=trace,info")]
        {
            for log_format in [LogFormat::Text, LogFormat::Json] {
                let (logs, kept) = (LogArgs { log_format, log: log.map(str::to_string) }, Kept::default());
                let writer = kept.clone();
                let subscriber = subscriber(&logs, "info", move || writer.clone());
                tracing::subscriber::with_default(subscriber, || {
                    let _in = tracing::info_span!("HTTP").entered();
                    tracing::warn!(target: "kube_client::client", "{{\"data\":\"hunter2\"}}, invalid");
                    tracing::warn!("seen");
                });
                let written = String::from_utf8(kept.0.lock().unwrap().clone()).unwrap();
                assert!(written.contains("seen") && !written.contains("hunter2"), "{log:?}: {written}");
            }
        }
    }

    #[test]
    fn a_line_of_json_says_the_same_with_nothing_raw_in_it() {
        let line = "{\"message\":\"\u{9b}31m \u{202e}\u{7f}\"}\n";
        let mut written = Vec::new();
        Escaped(&mut written).write_all(line.as_bytes()).unwrap();
        let written = String::from_utf8(written).unwrap();
        assert_eq!(written, "{\"message\":\"\\u009b31m \\u202e\\u007f\"}\n");
        let parse = |text: &str| serde_json::from_str::<serde_json::Value>(text).unwrap();
        assert_eq!(parse(&written), parse(line));
    }
}
