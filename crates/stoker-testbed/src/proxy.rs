//! A TCP proxy on loopback, in front of any address, that counts bytes and is as bad as told, while it runs.
//!
//! Connections come in, the same bytes go out, but for what a test wants to go wrong: [`cut_every`](Proxy::cut_every),
//! [`stall_after`](Proxy::stall_after), [`stall_each_after`](Proxy::stall_each_after), [`flip_after`](Proxy::flip_after), [`pace`](Proxy::pace), [`down`](Proxy::down). All of
//! it is for the way from the target to the client: the bytes that a registry sends. It knows no protocol.

mod pump;
mod state;

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{TcpListener, TcpSocket};
use tokio::task::{AbortHandle, JoinSet};

use self::state::State;

/// What lies in the kernel's buffer counts as sent, so it is kept small.
const BUFFER: u32 = 128 << 10;

/// Whoever waits this long for a byte has failed. It only ends a hang.
const PATIENCE: Duration = Duration::from_secs(300);

/// The bytes that a test waited for do not come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("no byte for five minutes after {got}, of the {wanted} that were waited for")]
pub struct Quiet {
    /// Bytes that were waited for.
    pub wanted: u64,
    /// Bytes that came.
    pub got: u64,
}

/// A proxy on a port of its own; it stops when dropped.
#[derive(Debug)]
pub struct Proxy {
    addr: SocketAddr,
    state: Arc<State>,
    task: AbortHandle,
    /// Holds the port, also while nobody listens there.
    _place: TcpSocket,
}

impl Proxy {
    /// Listens on a free port of loopback.
    pub async fn start(target: SocketAddr) -> io::Result<Self> {
        Self::start_at(Ipv4Addr::LOCALHOST, target).await
    }

    /// Listens on a free port of this address, for whoever can reach it.
    pub async fn start_at(address: Ipv4Addr, target: SocketAddr) -> io::Result<Self> {
        let place = socket()?;
        place.bind((address, 0).into())?;
        let addr = place.local_addr()?;
        let state = Arc::new(State::new(target));
        let listener = listen(addr)?;
        let task = tokio::spawn(serve(addr, listener, state.clone()));
        Ok(Self { addr, state, task: task.abort_handle(), _place: place })
    }

    /// `ADDRESS:PORT`, to begin references with.
    pub fn host(&self) -> String {
        self.addr.to_string()
    }

    /// Where it listens.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Bytes that went from the target to clients so far.
    pub fn received(&self) -> u64 {
        self.state.received()
    }

    /// Bytes that went from clients to the target so far.
    pub fn sent(&self) -> u64 {
        self.state.sent()
    }

    /// Connections so far.
    pub fn connections(&self) -> u64 {
        self.state.connections()
    }

    /// Waits until this many bytes in all went from the target to clients; an error if for five minutes none does.
    pub async fn wait_for_bytes(&self, bytes: u64) -> Result<(), Quiet> {
        while self.received() < bytes {
            let before = self.received();
            let more = self.state.wait_for(|state| state.received() > before);
            let quiet = |_| Quiet { wanted: bytes, got: before };
            tokio::time::timeout(PATIENCE, more).await.map_err(quiet)?;
        }
        Ok(())
    }

    /// From now on every connection ends once it has carried this many bytes; `None`: no more.
    pub fn cut_every(&self, bytes: Option<u64>) {
        self.state.change(|faults| faults.cut_every = bytes);
    }

    /// After this many more bytes, of all connections together, none passes until [`let_go`](Self::let_go).
    pub fn stall_after(&self, bytes: u64) {
        self.state.change(|faults| faults.stall_at = Some(faults.claimed.saturating_add(bytes)));
    }

    /// Every connection stalls when it has carried this many bytes in all, until [`let_go`](Self::let_go). Small answers of a registry
    /// pass on new connections meanwhile.
    pub fn stall_each_after(&self, bytes: u64) {
        self.state.change(|faults| faults.stall_each = Some(bytes));
    }

    /// Ends all stalls, also those that are still to come.
    pub fn let_go(&self) {
        self.state.change(|faults| (faults.stall_at, faults.stall_each) = (None, None));
    }

    /// The byte after this many more is wrong, once.
    pub fn flip_after(&self, bytes: u64) {
        self.state.change(|faults| faults.flip_at = Some(faults.claimed.saturating_add(bytes)));
    }

    /// From now on no more than this many bytes in a second, of all connections together; `None`: as fast as it goes.
    pub fn pace(&self, bytes_per_second: Option<u64>) {
        self.state.change(|faults| faults.pace = bytes_per_second);
    }

    /// Ends all connections and refuses new ones. Returns when nobody listens.
    pub async fn down(&self) {
        self.state.want(false);
        self.state.wait_for(|state| !state.is_up()).await;
    }

    /// Accepts connections again. Returns when it does.
    pub async fn up(&self) {
        self.state.want(true);
        self.state.wait_for(State::is_up).await;
    }

    /// New connections go there.
    pub fn retarget(&self, target: SocketAddr) {
        self.state.change(|faults| faults.target = target);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// A socket that may share its port, so that one can hold it while another comes and goes.
fn socket() -> io::Result<TcpSocket> {
    let socket = TcpSocket::new_v4()?;
    socket.set_reuseaddr(true)?;
    socket.set_reuseport(true)?;
    socket.set_send_buffer_size(BUFFER)?;
    Ok(socket)
}

fn listen(addr: SocketAddr) -> io::Result<TcpListener> {
    let socket = socket()?;
    socket.bind(addr)?;
    socket.listen(1024)
}

async fn serve(addr: SocketAddr, first: TcpListener, state: Arc<State>) {
    let mut next = Some(first);
    loop {
        let listener = match next.take().map_or_else(|| listen(addr), Ok) {
            Ok(listener) => listener,
            // The port is held for us: only a process without file descriptors comes here or there below. All is refused then.
            Err(_) => return,
        };
        state.is(true);
        // The set goes with the task or with the listener, and all connections with the set.
        let mut connections = JoinSet::new();
        loop {
            tokio::select! {
                accepted = listener.accept() => match accepted {
                    Ok((client, _)) => {
                        connections.spawn(pump::carry(client, state.clone()));
                    }
                    Err(_) => return,
                },
                Some(_) = connections.join_next() => {}
                () = state.wanted(false) => break,
            }
        }
        drop(listener);
        connections.shutdown().await;
        state.is(false);
        state.wanted(true).await;
    }
}

#[cfg(test)]
mod tests;
