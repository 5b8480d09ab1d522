//! A program that runs beside a test: it is started, awaited by what it logs, and killed. What it logs is kept, up to a
//! bound, over its restarts too. It never outlives its owner.

use std::io::{self, BufRead as _, BufReader, Read as _};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::sync::watch;

/// More than this of a log is not kept.
const MOST_LOG: usize = 16 << 20;
const LONGEST_LINE: u64 = 1 << 20;
/// It only ends a hang: no start takes this long, not on a busy machine either.
const PATIENCE: Duration = Duration::from_secs(300);

/// Everything that a daemon said, in all its lives.
#[derive(Debug, Clone, Default)]
pub(crate) struct Log(Arc<watch::Sender<String>>);

impl Log {
    pub(crate) fn text(&self) -> String {
        self.0.borrow().clone()
    }
}

/// One life of it.
#[derive(Debug)]
pub(crate) struct Daemon {
    child: Child,
    log: Log,
    /// Where this life begins in the log.
    from: usize,
    /// Whether this life's pipe is at its end. Not in the log: the end of a life before may be noticed late.
    ended: Arc<AtomicBool>,
}

/// It did not come up; the text is what it said.
#[derive(Debug, thiserror::Error)]
#[error("it {what}; it said:\n{log}")]
pub struct NotUp {
    what: &'static str,
    log: String,
}

impl Daemon {
    /// Starts it with its errors going to the log.
    pub(crate) fn start(command: &mut Command, log: &Log) -> io::Result<Self> {
        let from = log.0.borrow().len();
        let ended = Arc::new(AtomicBool::new(false));
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn()?;
        if let Some(pipe) = child.stderr.take() {
            let (log, ended) = (log.clone(), ended.clone());
            // It ends with the pipe, which ends with the child.
            std::thread::spawn(move || {
                let mut pipe = BufReader::new(pipe);
                let mut line = Vec::new();
                while pipe.by_ref().take(LONGEST_LINE).read_until(b'\n', &mut line).is_ok_and(|read| read > 0) {
                    log.0.send_modify(|said| {
                        if said.len() < MOST_LOG {
                            *said += &String::from_utf8_lossy(&line);
                        }
                    });
                    line.clear();
                }
                ended.store(true, Ordering::SeqCst);
                // Wakes whoever waits.
                log.0.send_modify(|_| {});
            });
        }
        Ok(Self { child, log: log.clone(), from, ended })
    }

    /// Waits until it has said all of these, and gives what it said in this life.
    pub(crate) async fn says(&self, words: &[&str]) -> Result<String, NotUp> {
        let mut said = self.log.0.subscribe();
        let own = |said: &String| said.get(self.from..).unwrap_or_default().to_owned();
        let all = |text: &str| words.iter().all(|word| text.contains(word));
        let heard = said.wait_for(|said| self.ended.load(Ordering::SeqCst) || all(&own(said)));
        let what = match tokio::time::timeout(PATIENCE, heard).await {
            Ok(Ok(said)) if all(&own(&said)) => return Ok(own(&said)),
            Ok(_) => "ended",
            Err(_) => "did not get ready",
        };
        Err(NotUp { what, log: own(&self.log.0.borrow()) })
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// kill -9, and waits until it is gone.
    pub(crate) fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.kill();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    #[tokio::test]
    async fn each_life_is_awaited_by_its_own_words() {
        let log = Log::default();
        let mut first = Daemon::start(&mut shell("echo up 1 >&2; exec sleep 1000"), &log).unwrap();
        assert_eq!(first.says(&["up"]).await.unwrap(), "up 1\n");
        first.kill();
        // The end of the first may still be unnoticed, and is not the second's.
        let second = Daemon::start(&mut shell("echo up 2 >&2; exec sleep 1000"), &log).unwrap();
        assert_eq!(second.says(&["up", "2"]).await.unwrap(), "up 2\n");
        assert_eq!(log.text(), "up 1\nup 2\n");
    }

    #[tokio::test]
    async fn one_that_ends_says_why() {
        let daemon = Daemon::start(&mut shell("echo no such port >&2"), &Log::default()).unwrap();
        let error = daemon.says(&["up"]).await.unwrap_err().to_string();
        assert_eq!(error, "it ended; it said:\nno such port\n");
    }
}
