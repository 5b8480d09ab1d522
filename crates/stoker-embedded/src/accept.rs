//! Taking connections from strangers. In: a listener, a bound, what to do with a connection. Out: those that are still open when
//! it is told to end. It reads nothing and decides nothing about whom to trust; how long one may take is for the caller to bound.

use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// A failing accept (out of file descriptors, mostly) is tried again after this.
const PAUSE: Duration = Duration::from_millis(100);

/// Serves the connections of a listener, at most `limit` at one time (more wait in its queue), until cancelled. What is open
/// then is returned, for the caller to wait for or to cut. A connection that panics costs nobody but itself.
pub async fn accept<F>(
    listener: &TcpListener,
    limit: usize,
    cancel: &CancellationToken,
    mut serve: impl FnMut(TcpStream) -> F,
) -> JoinSet<()>
where
    F: Future<Output = ()> + Send + 'static,
{
    let slots = Arc::new(Semaphore::new(limit));
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            biased;
            () = cancel.cancelled() => return connections,
            // Ended connections are cleared away as they end, so the set holds only live ones.
            Some(_) = connections.join_next() => {}
            (stream, slot) = next(listener, &slots) => {
                let connection = serve(stream);
                connections.spawn(async move {
                    connection.await;
                    // Only when everything of the connection is gone, its socket too.
                    drop(slot);
                });
            }
        }
    }
}

async fn next(listener: &TcpListener, slots: &Arc<Semaphore>) -> (TcpStream, OwnedSemaphorePermit) {
    loop {
        let failed = match slots.clone().acquire_owned().await {
            Ok(slot) => match listener.accept().await {
                Ok((stream, _)) => {
                    // Small events must not wait for more bytes. Where it fails the other side is gone, as serving it will show.
                    let _ = stream.set_nodelay(true);
                    return (stream, slot);
                }
                Err(error) => error.to_string(),
            },
            Err(error) => error.to_string(),
        };
        tracing::warn!("a connection could not be accepted: {failed}; trying again");
        tokio::time::sleep(PAUSE).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::sync::watch;

    /// How many are served now, and how many ever were at one time.
    #[derive(Debug, Default, Clone, Copy)]
    struct Seen {
        now: usize,
        most: usize,
        ended: usize,
    }

    /// Counts even where the connection panics.
    struct Counted(Arc<Mutex<watch::Sender<Seen>>>);

    impl Counted {
        fn new(seen: &Arc<Mutex<watch::Sender<Seen>>>) -> Self {
            seen.lock().unwrap().send_modify(|seen| {
                seen.now += 1;
                seen.most = seen.most.max(seen.now);
            });
            Self(seen.clone())
        }
    }

    impl Drop for Counted {
        fn drop(&mut self) {
            self.0.lock().unwrap().send_modify(|seen| {
                seen.now -= 1;
                seen.ended += 1;
            });
        }
    }

    #[tokio::test]
    async fn no_more_than_the_limit_at_one_time_and_all_have_their_turn() {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let addr = listener.local_addr().unwrap();
        let cancel = CancellationToken::new();
        let (tell, mut told) = watch::channel(Seen::default());
        let seen = Arc::new(Mutex::new(tell));
        let until = cancel.clone();
        let accepting = tokio::spawn(async move {
            // Answers a byte with the same, and panics at a `p`.
            let serve = |mut stream: TcpStream| {
                let counted = Counted::new(&seen);
                async move {
                    let _counted = counted;
                    while let Ok(byte) = stream.read_u8().await {
                        assert_ne!(byte, b'p');
                        let _ = stream.write_u8(byte).await;
                    }
                }
            };
            accept(&listener, 4, &until, serve).await
        });
        let mut clients = Vec::new();
        for _ in 0..20 {
            clients.push(TcpStream::connect(addr).await.unwrap());
        }
        told.wait_for(|seen| seen.now == 4).await.unwrap();
        // In the order in which they came; each is answered although all the later ones wait.
        for (number, mut client) in clients.into_iter().enumerate() {
            if number % 5 == 0 {
                client.write_u8(b'p').await.unwrap();
                assert_eq!(client.read(&mut [0]).await.unwrap_or(0), 0, "it is closed");
            } else {
                client.write_u8(b'x').await.unwrap();
                assert_eq!(client.read_u8().await.unwrap(), b'x');
            }
            drop(client);
            told.wait_for(|seen| seen.ended > number).await.unwrap();
        }
        let all = *told.borrow();
        assert_eq!((all.now, all.most, all.ended), (0, 4, 20));

        // One that is open when it ends is handed back.
        let open = TcpStream::connect(addr).await.unwrap();
        told.wait_for(|seen| seen.now == 1).await.unwrap();
        cancel.cancel();
        let mut left = accepting.await.unwrap();
        assert_eq!(left.len(), 1);
        drop(open);
        left.join_next().await.unwrap().unwrap();
    }
}
