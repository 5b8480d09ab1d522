//! A TCP connection that wakes its reader only while the reader waits.
//!
//! tokio registers a connection with the kernel (epoll) for its whole life, so every packet wakes a thread, also while nobody
//! wants to read. On a link of 100 Mbit/s that is thousands of wake-ups a second. Who pauses between two reads
//! ([`crate::sip`]) takes the registration away for that time: what comes meanwhile costs nothing until it is read.

use std::io::{self, Read as _, Write as _};
use std::net::{Shutdown, TcpStream};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use hyper_util::client::legacy::connect::{Connected, Connection};
use tokio::io::unix::AsyncFd;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// A stream that can stop to listen for what comes.
pub(crate) trait Unwatch {
    /// What comes from now on wakes nobody, until somebody reads again. Who waits to write goes on waiting.
    fn unwatch(&mut self);
}

/// A connection that is registered with the kernel while somebody waits for it.
#[derive(Debug)]
pub(crate) struct Socket {
    stream: Arc<TcpStream>,
    /// The registration.
    watch: Option<AsyncFd<Arc<TcpStream>>>,
    /// Somebody waits for room to write, and is woken through the registration.
    writing: bool,
}

/// What to wait for.
#[derive(Clone, Copy)]
enum Ready {
    Bytes,
    Room,
}

impl Socket {
    /// Takes over a connection of tokio's.
    pub(crate) fn new(stream: tokio::net::TcpStream) -> io::Result<Self> {
        Ok(Self { stream: Arc::new(stream.into_std()?), watch: None, writing: false })
    }

    /// Does it, and waits where that would block.
    fn poll_io<T>(
        &mut self,
        cx: &mut Context<'_>,
        ready: Ready,
        mut act: impl FnMut(&TcpStream) -> io::Result<T>,
    ) -> Poll<io::Result<T>> {
        loop {
            match act(&self.stream) {
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                done => return Poll::Ready(done),
            }
            let watch = match &self.watch {
                Some(watch) => watch,
                None => self.watch.insert(AsyncFd::new(self.stream.clone())?),
            };
            // Readiness of the past is cleared before the next try, so nothing that comes in between is missed.
            let mut guard = match ready {
                Ready::Bytes => ready!(watch.poll_read_ready(cx))?,
                Ready::Room => ready!(watch.poll_write_ready(cx))?,
            };
            guard.clear_ready();
        }
    }

    fn poll_send(
        &mut self,
        cx: &mut Context<'_>,
        send: impl FnMut(&TcpStream) -> io::Result<usize>,
    ) -> Poll<io::Result<usize>> {
        let sent = self.poll_io(cx, Ready::Room, send);
        self.writing = sent.is_pending();
        sent
    }
}

impl Unwatch for Socket {
    fn unwatch(&mut self) {
        if !self.writing {
            self.watch = None;
        }
    }
}

impl AsyncRead for Socket {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let read =
            ready!(self.get_mut().poll_io(cx, Ready::Bytes, |mut stream| stream.read(buf.initialize_unfilled())))?;
        buf.advance(read);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Socket {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.get_mut().poll_send(cx, |mut stream| stream.write(bytes))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        // Nothing is held back.
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(match self.stream.shutdown(Shutdown::Write) {
            Err(e) if e.kind() == io::ErrorKind::NotConnected => Ok(()),
            done => done,
        })
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.get_mut().poll_send(cx, |mut stream| stream.write_vectored(bytes))
    }
}

impl Connection for Socket {
    fn connected(&self) -> Connected {
        Connected::new()
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;

    use super::*;

    async fn pair() -> (Socket, tokio::net::TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let near = tokio::net::TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        (Socket::new(near).unwrap(), listener.accept().await.unwrap().0)
    }

    #[tokio::test]
    async fn it_is_registered_while_somebody_waits() {
        let (mut socket, mut far) = pair().await;
        let mut byte = [0];
        far.write_all(b"ab").await.unwrap();
        socket.read_exact(&mut byte).await.unwrap();
        socket.unwatch();
        assert!(socket.watch.is_none());
        socket.read_exact(&mut byte).await.unwrap();
        assert!(socket.watch.is_none(), "what is there is read without a registration");
        let (read, written) = tokio::join!(socket.read_exact(&mut byte), far.write_all(b"c"));
        (read.unwrap(), written.unwrap());
        assert!(socket.watch.is_some() && byte == *b"c");
    }

    #[tokio::test]
    async fn who_waits_to_write_is_woken_although_the_reader_pauses() {
        const MUCH: usize = 16 << 20;
        let (mut socket, mut far) = pair().await;
        let much = vec![7; MUCH];
        let full = |socket: &mut Socket| {
            let mut sent = 0;
            while let Poll::Ready(wrote) =
                Pin::new(&mut *socket).poll_write(&mut Context::from_waker(std::task::Waker::noop()), &much[sent..])
            {
                sent += wrote.unwrap();
            }
            sent
        };
        let sent = full(&mut socket);
        socket.unwatch();
        let rest = async {
            socket.write_all(&much[sent..]).await.unwrap();
            socket.shutdown().await.unwrap();
        };
        let mut read = Vec::new();
        tokio::join!(rest, async { far.read_to_end(&mut read).await.unwrap() });
        assert_eq!(read.len(), MUCH);
        let mut nothing = [0];
        drop(far);
        assert!(matches!(socket.read(&mut nothing).await, Ok(0) | Err(_)), "the end is seen");
    }
}
