//! The way to a host: directly, or through the node's proxy.
//!
//! An address comes in; a stream of bytes to there goes out, without the TLS that is spoken on it. An https host is reached
//! by a tunnel that the proxy cannot look into; for a plain one the proxy is asked in its place.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use futures::future::{BoxFuture, FutureExt as _};
use http::Uri;
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder, MaybeHttpsStream};
use hyper_util::client::legacy::connect::proxy::Tunnel;
use hyper_util::client::legacy::connect::{Connected, Connection, HttpConnector};
use hyper_util::rt::TokioIo;
use rustls::ClientConfig;
use tokio::io::BufReader;
use tokio::net::TcpStream;
use tower::util::MapResponse;
use tower::{Service, ServiceExt as _};

use super::http::{chain, name};
use crate::proxy::{Proxy, Way};
use crate::sip::Sip;
use crate::socket::{Socket, Unwatch};

/// A read waits no longer than this for more.
const PAUSE: Duration = Duration::from_millis(20);

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// Connects to an address.
type Sockets = MapResponse<HttpConnector, fn(TokioIo<TcpStream>) -> TokioIo<Socket>>;

fn socket(stream: TokioIo<TcpStream>) -> TokioIo<Socket> {
    TokioIo::new(Socket::new(stream.into_inner()))
}

/// Connects as the proxy's rules say.
#[derive(Debug, Clone)]
pub(super) struct Connect {
    proxy: Proxy,
    tcp: Sockets,
    /// A proxy may itself be spoken to with TLS.
    to_proxy: HttpsConnector<Sockets>,
    /// What is read from a socket at once for those who ask for less: TLS reads 4 KiB at a time.
    ahead: usize,
}

impl Connect {
    /// Connects within this time; `tls` is for proxies that want it. Up to `ahead` is read from a socket before it is asked for.
    pub(super) fn new(proxy: Proxy, timeout: Duration, tls: ClientConfig, ahead: usize) -> Self {
        let mut tcp = HttpConnector::new();
        tcp.enforce_http(false);
        tcp.set_nodelay(true);
        tcp.set_connect_timeout(Some(timeout));
        let tcp: Sockets = tcp.map_response(socket);
        let builder = HttpsConnectorBuilder::new().with_tls_config(tls).https_or_http().enable_http1();
        Self { proxy, to_proxy: builder.wrap_connector(tcp.clone()), tcp, ahead }
    }
}

impl Service<Uri> for Connect {
    type Response = HostStream;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<HostStream, BoxError>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.tcp.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, to: Uri) -> Self::Future {
        let ahead = self.ahead;
        let stream = move |io, in_its_place| {
            let sip = Sip::new(TokioIo::new(io), PAUSE);
            HostStream { io: TokioIo::new(BufReader::with_capacity(ahead, sip)), in_its_place }
        };
        match self.proxy.way(&to) {
            Way::Direct => {
                let connecting = self.tcp.call(to);
                async move { Ok(stream(MaybeHttpsStream::Http(connecting.await?), false)) }.boxed()
            }
            Way::Through(proxy, login) if to.scheme_str() == Some("https") => {
                let named = name(&proxy);
                let mut tunnel = Tunnel::new(proxy, self.to_proxy.clone());
                if let Some(login) = login {
                    tunnel = tunnel.with_auth(login);
                }
                async move {
                    let io = tunnel.call(to).await.map_err(|e| format!("the proxy {named}: {}", chain(&e)))?;
                    Ok(stream(io, false))
                }
                .boxed()
            }
            Way::Through(proxy, _) => {
                let named = name(&proxy);
                let connecting = self.to_proxy.call(proxy);
                async move {
                    let io = connecting.await.map_err(|e| format!("the proxy {named}: {}", chain(&*e)))?;
                    Ok(stream(io, true))
                }
                .boxed()
            }
            Way::Nowhere(variable) => {
                let why = format!("{variable} is not the address of an http or https proxy");
                async move { Err(why.into()) }.boxed()
            }
        }
    }
}

/// A connection, with TLS where a proxy wants it.
type Plain = TokioIo<MaybeHttpsStream<TokioIo<Socket>>>;

impl Unwatch for Plain {
    fn unwatch(&mut self) {
        match self.inner_mut() {
            MaybeHttpsStream::Http(socket) => socket.inner_mut().unwatch(),
            MaybeHttpsStream::Https(tls) => tls.inner_mut().get_mut().0.inner_mut().inner_mut().unwatch(),
        }
    }
}

/// A stream to a host, or to a proxy that stands in its place.
#[derive(Debug)]
pub(super) struct HostStream {
    io: TokioIo<BufReader<Sip<Plain>>>,
    in_its_place: bool,
}

impl Connection for HostStream {
    fn connected(&self) -> Connected {
        self.io.inner().get_ref().get_ref().inner().connected().proxy(self.in_its_place)
    }
}

impl Read for HostStream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: ReadBufCursor<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().io).poll_read(cx, buf)
    }
}

impl Write for HostStream {
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
