//! Carries one connection: both ways until the client ends it, or a fault or an error does.

use std::io;
use std::sync::Arc;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};

use super::state::State;

const PIECE: usize = 64 << 10;

pub(super) async fn carry(client: TcpStream, state: Arc<State>) {
    state.note_connection();
    // The client sees the end of its connection, as of a target that is not there.
    let Ok(target) = TcpStream::connect(state.target()).await else { return };
    let _ = (client.set_nodelay(true), target.set_nodelay(true));
    let (from_client, to_client) = client.into_split();
    let (from_target, to_target) = target.into_split();
    // An error on either way ends both; so does a cut. A target's end is passed on, and the client's follows.
    let _ = tokio::try_join!(up(from_client, to_target, &state), down(from_target, to_client, &state));
}

async fn up(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, state: &State) -> io::Result<()> {
    let mut piece = vec![0; PIECE];
    loop {
        let length = from.read(&mut piece).await?;
        if length == 0 {
            // No client of HTTP ends its side while it waits for an answer: it is gone, and nothing more may count as received.
            return Err(io::ErrorKind::ConnectionAborted.into());
        }
        to.write_all(&piece[..length]).await?;
        state.note_sent(length);
    }
}

async fn down(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, state: &State) -> io::Result<()> {
    let mut piece = vec![0; PIECE];
    let mut carried = 0;
    loop {
        let length = from.read(&mut piece).await?;
        if length == 0 {
            return to.shutdown().await;
        }
        let mut rest = &mut piece[..length];
        while !rest.is_empty() {
            let Some(leave) = state.leave(rest.len(), carried).await else {
                // What was written arrives, then comes the end.
                let _ = to.shutdown().await;
                return Err(io::ErrorKind::ConnectionAborted.into());
            };
            tokio::time::sleep_until(leave.at).await;
            if let Some(byte) = leave.flip.and_then(|at| rest.get_mut(at)) {
                *byte ^= 0xff;
            }
            let (now, later) = rest.split_at_mut(leave.bytes);
            to.write_all(now).await?;
            state.note_received(now.len());
            carried += now.len() as u64;
            rest = later;
        }
    }
}
