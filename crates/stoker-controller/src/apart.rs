//! A task whose synchronous work may take long: it has a thread of its own, so that it keeps no other task waiting.

use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::sync::oneshot;

/// Runs a future on a thread of its own, also where the machine has one processor only, and hands its result to whoever waits for it;
/// nothing where it panicked. It cannot be aborted: whoever starts it tells it when to end. On a runtime with one thread it is a task
/// like any other.
///
/// tokio's `block_in_place` would do for the work alone. But it moves the other tasks to another thread each time, and glibc keeps a
/// heap for every thread that has ever allocated.
pub(crate) fn spawn<F>(name: &str, future: F) -> oneshot::Receiver<F::Output>
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    let (result, results) = oneshot::channel();
    let runtime = Handle::current();
    let work = async move {
        // Who waits no more wants no result.
        let _ = result.send(future.await);
    };
    match runtime.runtime_flavor() {
        RuntimeFlavor::MultiThread => {
            let thread = std::thread::Builder::new().name(name.to_owned());
            if let Err(problem) = thread.spawn(move || runtime.block_on(work)) {
                tracing::error!("cannot start the thread {name}: {problem}");
            }
        }
        _ => {
            tokio::spawn(work);
        }
    }
    results
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    /// The task waits, without letting others run, for what another task does.
    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn long_work_keeps_no_other_task_waiting() {
        let works = spawn("works", async {
            let (says, said) = std::sync::mpsc::channel();
            tokio::spawn(async move { says.send(()) });
            said.recv_timeout(Duration::from_secs(60))
        });
        assert_eq!(works.await.unwrap(), Ok(()));
    }

    #[tokio::test]
    async fn it_is_a_task_where_there_is_one_thread_only() {
        assert_eq!(spawn("works", async { 7 }).await, Ok(7));
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn who_panics_has_no_result() {
        let panics = spawn("panics", async { assert!(std::hint::black_box(false), "on purpose") });
        assert!(panics.await.is_err());
    }
}
