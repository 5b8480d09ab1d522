//! A TCP connection that wakes its reader only while the reader waits.
//!
//! tokio registers a connection with the kernel (epoll) for its whole life, so every packet wakes a thread, also while nobody
//! wants to read. On a link of 100 Mbit/s that is thousands of wake-ups a second. Who pauses between two reads
//! ([`crate::sip`]) takes the registration away for that time: what comes meanwhile costs nothing until it is read.

use std::io::{self, Read as _, Write as _};
use std::mem;
use std::net::Shutdown;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use hyper_util::client::legacy::connect::{Connected, Connection};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

/// A stream that can stop to listen for what comes.
pub(crate) trait Unwatch {
    /// What comes from now on wakes nobody, until somebody reads again. Who waits to write goes on waiting.
    fn unwatch(&mut self);
}

/// A connection that is registered with the kernel while somebody waits for it.
#[derive(Debug)]
pub(crate) struct Socket {
    stream: Stream,
    /// Somebody waits for room to write, and is woken through the registration.
    writing: bool,
}

#[derive(Debug)]
enum Stream {
    /// It is registered.
    Watched(TcpStream),
    /// It is not, and does not block.
    Unwatched(std::net::TcpStream),
    /// It could not be registered, or the registration could not be taken away.
    Gone,
}

impl Socket {
    /// Takes over a connection of tokio's.
    pub(crate) fn new(stream: TcpStream) -> Self {
        Self { stream: Stream::Watched(stream), writing: false }
    }

    /// Does it at once where nothing is registered. None if that would block: then it is registered, and tokio is to be asked.
    fn at_once<T>(&mut self, mut act: impl FnMut(&std::net::TcpStream) -> io::Result<T>) -> io::Result<Option<T>> {
        while let Stream::Unwatched(stream) = &self.stream {
            match act(stream) {
                Ok(done) => return Ok(Some(done)),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => self.watch()?,
                Err(e) => return Err(e),
            }
        }
        Ok(None)
    }

    fn watch(&mut self) -> io::Result<()> {
        if let Stream::Unwatched(stream) = mem::replace(&mut self.stream, Stream::Gone) {
            self.stream = Stream::Watched(TcpStream::from_std(stream)?);
        }
        Ok(())
    }

    fn watched(&mut self) -> io::Result<Pin<&mut TcpStream>> {
        match &mut self.stream {
            Stream::Watched(stream) => Ok(Pin::new(stream)),
            Stream::Unwatched(_) | Stream::Gone => Err(io::ErrorKind::NotConnected.into()),
        }
    }

    fn poll_send(
        &mut self,
        cx: &mut Context<'_>,
        at_once: impl FnMut(&std::net::TcpStream) -> io::Result<usize>,
        wait: impl FnOnce(Pin<&mut TcpStream>, &mut Context<'_>) -> Poll<io::Result<usize>>,
    ) -> Poll<io::Result<usize>> {
        let sent = match self.at_once(at_once)? {
            Some(sent) => Poll::Ready(Ok(sent)),
            None => wait(self.watched()?, cx),
        };
        self.writing = sent.is_pending();
        sent
    }
}

impl Unwatch for Socket {
    fn unwatch(&mut self) {
        if self.writing || !matches!(self.stream, Stream::Watched(_)) {
            return;
        }
        if let Stream::Watched(stream) = mem::replace(&mut self.stream, Stream::Gone)
            && let Ok(stream) = stream.into_std()
        {
            self.stream = Stream::Unwatched(stream);
        }
    }
}

impl AsyncRead for Socket {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let socket = self.get_mut();
        match socket.at_once(|mut stream| stream.read(buf.initialize_unfilled()))? {
            Some(read) => buf.advance(read),
            None => ready!(socket.watched()?.poll_read(cx, buf))?,
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Socket {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.get_mut().poll_send(cx, |mut stream| stream.write(bytes), |stream, cx| stream.poll_write(cx, bytes))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        // Nothing is held back.
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.get_mut().stream {
            Stream::Watched(stream) => Pin::new(stream).poll_shutdown(cx),
            Stream::Unwatched(stream) => Poll::Ready(match stream.shutdown(Shutdown::Write) {
                Err(e) if e.kind() == io::ErrorKind::NotConnected => Ok(()),
                done => done,
            }),
            Stream::Gone => Poll::Ready(Ok(())),
        }
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.get_mut().poll_send(
            cx,
            |mut stream| stream.write_vectored(bytes),
            |stream, cx| stream.poll_write_vectored(cx, bytes),
        )
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

    async fn pair() -> (Socket, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        (Socket::new(near), listener.accept().await.unwrap().0)
    }

    #[tokio::test]
    async fn it_is_registered_while_somebody_waits() {
        let (mut socket, mut far) = pair().await;
        let mut byte = [0];
        far.write_all(b"ab").await.unwrap();
        socket.read_exact(&mut byte).await.unwrap();
        socket.unwatch();
        assert!(matches!(socket.stream, Stream::Unwatched(_)));
        socket.read_exact(&mut byte).await.unwrap();
        assert!(matches!(socket.stream, Stream::Unwatched(_)), "what is there is read without a registration");
        let (read, written) = tokio::join!(socket.read_exact(&mut byte), far.write_all(b"c"));
        read.unwrap();
        written.unwrap();
        assert!(matches!(socket.stream, Stream::Watched(_)) && byte == *b"c");
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
