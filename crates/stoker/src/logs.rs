//! Logs on standard error, for people or for machines. What others wrote is escaped in them, as in everything that is printed.

use std::fmt::{Debug, Write as _};
use std::io::{self, IsTerminal as _};

use stoker_core::text;
use tracing::field::Field;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::field::MakeExt as _;
use tracing_subscriber::fmt::format::{Writer, debug_fn};

use crate::cli::{LogArgs, LogFormat};
use crate::out;

/// Starts logging. That the filter can be read was checked with the rest of the command line.
pub(crate) fn start(logs: &LogArgs, default: &str) {
    let filter = EnvFilter::new(logs.log.as_deref().unwrap_or(default));
    let colour = io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_target(false);
    match logs.log_format {
        LogFormat::Text => {
            // Field by field: the colours of the formatter itself are escapes, too.
            let builder = builder.with_writer(io::stderr).with_ansi(colour);
            builder.fmt_fields(debug_fn(field).delimited(" ")).init();
        }
        LogFormat::Json => builder.json().flatten_event(true).with_writer(|| Escaped(io::stderr())).init(),
    }
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
