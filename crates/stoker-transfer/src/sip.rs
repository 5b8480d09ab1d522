//! A stream that is read in large pieces.
//!
//! On a slow link every packet wakes its reader, and a wake-up costs more than the bytes that it brings. So whoever has read
//! all there was waits a little before it looks again: as long as a good piece takes at the rate of late, and never long. What
//! comes meanwhile wakes nobody. A fast link is not held up, because its pieces are large by themselves.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep};

use crate::socket::Unwatch;

/// A good piece.
const PIECE: u64 = 256 * 1024;
/// No pause is shorter than this: a timer is not finer, and a wake-up by it would be no cheaper.
const SHORTEST: Duration = Duration::from_millis(1);

/// Reads from `io` in large pieces, and writes to it as before.
#[derive(Debug)]
pub(crate) struct Sip<T> {
    io: T,
    /// When the last pause began.
    since: Instant,
    /// What was read since then.
    read: u64,
    longest: Duration,
    pause: Option<Pin<Box<Sleep>>>,
}

impl<T: Unwatch> Sip<T> {
    /// A pause is no longer than this.
    pub(crate) fn new(io: T, longest: Duration) -> Self {
        Self { io, since: Instant::now(), read: 0, longest, pause: None }
    }

    pub(crate) fn get_ref(&self) -> &T {
        &self.io
    }

    /// Everything was read that had come.
    fn drained(&mut self) {
        let now = Instant::now();
        let pause = pause_after(self.read, now.saturating_duration_since(self.since), self.longest);
        (self.since, self.read) = (now, 0);
        if let Some(pause) = pause {
            self.io.unwatch();
            self.pause = Some(Box::pin(sleep(pause)));
        }
    }
}

/// How long to wait for the next good piece, where this much came in this time.
fn pause_after(bytes: u64, passed: Duration, longest: Duration) -> Option<Duration> {
    let nanos = u128::from(PIECE) * passed.as_nanos() / u128::from(bytes.max(1));
    let pause = Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX)).min(longest);
    (pause >= SHORTEST).then_some(pause)
}

impl<T: AsyncRead + Unwatch + Unpin> AsyncRead for Sip<T> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let sip = self.get_mut();
        if let Some(pause) = &mut sip.pause {
            ready!(pause.as_mut().poll(cx));
            sip.pause = None;
        }
        let before = buf.filled().len();
        let read = Pin::new(&mut sip.io).poll_read(cx, buf);
        let came = buf.filled().len() - before;
        sip.read += came as u64;
        // The end of the stream needs no pause, and a full buffer says that there may be more.
        if came > 0 && buf.remaining() > 0 {
            sip.drained();
        }
        read
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Sip<T> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().io).poll_write(cx, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().io).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().io).poll_shutdown(cx)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().io).poll_write_vectored(cx, bytes)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, duplex};

    use super::*;

    impl Unwatch for DuplexStream {
        fn unwatch(&mut self) {}
    }

    const LONGEST: Duration = Duration::from_millis(8);

    #[test]
    fn a_pause_is_as_long_as_a_good_piece_takes() {
        let (mib, second) = (1 << 20, Duration::from_secs(1));
        for (bytes, pause) in [
            // Nothing came, 12.5 MB/s, 125 MB/s, and a link that needs no pause.
            (0, Some(LONGEST)),
            (12 * mib, Some(LONGEST)),
            (125 * mib, Some(Duration::from_millis(2))),
            (1000 * mib, None),
        ] {
            assert_eq!(pause_after(bytes, second, LONGEST), pause, "{bytes}");
        }
        assert_eq!(pause_after(u64::MAX, Duration::MAX, LONGEST), Some(LONGEST));
        assert_eq!(pause_after(1, Duration::ZERO, LONGEST), None);
    }

    /// A sender of one packet a millisecond; how many reads it takes, and how long.
    async fn reads_of(packets: usize, buffer: usize) -> (usize, Duration) {
        let (mut near, far) = duplex(1 << 20);
        let sender = async move {
            for _ in 0..packets {
                tokio::time::sleep(Duration::from_millis(1)).await;
                near.write_all(&[7; 1000]).await.unwrap();
            }
        };
        let reader = async {
            let (mut sip, mut piece, mut reads, mut bytes) = (Sip::new(far, LONGEST), vec![0; buffer], 0, 0);
            let start = Instant::now();
            loop {
                match sip.read(&mut piece).await.unwrap() {
                    0 => break,
                    read => bytes += read,
                }
                reads += 1;
            }
            assert_eq!(bytes, packets * 1000);
            (reads, start.elapsed())
        };
        tokio::join!(sender, reader).1
    }

    #[tokio::test(start_paused = true)]
    async fn many_packets_are_read_at_one_time() {
        let (reads, took) = reads_of(800, 64 << 10).await;
        assert!((50..=210).contains(&reads), "{reads}");
        assert!(took <= Duration::from_millis(800) + 2 * LONGEST, "{took:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_small_buffer_is_filled_without_pauses() {
        let (mut near, far) = duplex(1 << 20);
        near.write_all(&[7; 1 << 20]).await.unwrap();
        drop(near);
        let (mut sip, mut piece, start) = (Sip::new(far, LONGEST), vec![0; 1 << 10], Instant::now());
        while sip.read(&mut piece).await.unwrap() > 0 {}
        assert_eq!(start.elapsed(), Duration::ZERO);
    }
}
