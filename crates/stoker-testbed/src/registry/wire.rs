//! HTTP/1.1 by hand: heads are read, bodies are written and counted byte by byte.

use std::sync::Arc;

use bytes::Bytes;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::net::tcp::OwnedWriteHalf;

use super::answer::{Answer, answer};
use super::{Seen, Shared};

const PIECE: usize = 16 * 1024;
const LONGEST_HEAD: u64 = 64 * 1024;

/// Serves one connection until its end; whoever breaks it off, nobody needs to know.
pub(super) async fn serve(stream: TcpStream, shared: Arc<Shared>, connection: usize) {
    let (read, mut write) = stream.into_split();
    let mut read = BufReader::new(read);
    let mut forgotten = Bytes::new();
    while let Some(mut request) = head(&mut read).await {
        request.connection = connection;
        let answer = answer(&shared, &request);
        let late = std::mem::replace(&mut forgotten, answer.tail.clone());
        request.status = answer.status;
        let number = shared.note(|store| {
            store.seen.push(request);
            store.seen.len() - 1
        });
        if answer.held {
            let _ = shared.open.subscribe().wait_for(|open| *open).await;
        }
        if answer.hangs_up || write.write_all(&late).await.is_err() {
            return;
        }
        match send(&mut write, &shared, number, answer).await {
            Ok(true) => {}
            // Closed as a working server would: what was written arrives, then comes the end.
            _ => {
                let _ = write.shutdown().await;
                return;
            }
        }
    }
}

async fn head(read: &mut BufReader<tokio::net::tcp::OwnedReadHalf>) -> Option<Seen> {
    let mut lines = read.take(LONGEST_HEAD);
    let mut line = String::new();
    lines.read_line(&mut line).await.ok().filter(|read| *read > 0)?;
    let mut words = line.split_whitespace();
    let (method, target) = (words.next()?.to_owned(), words.next()?);
    let (host, target) =
        match target.strip_prefix("http://").and_then(|rest| rest.find('/').map(|at| rest.split_at(at))) {
            Some((host, target)) => (Some(host.to_owned()), target),
            None => (None, target),
        };
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let mut seen =
        Seen { method, path: path.to_owned(), query: query.to_owned(), in_place_of: host, ..Seen::default() };
    loop {
        let mut line = String::new();
        lines.read_line(&mut line).await.ok().filter(|read| *read > 0)?;
        let line = line.trim_end();
        if line.is_empty() {
            return Some(seen);
        }
        let (name, value) = line.split_once(':')?;
        let (name, value) = (name.to_ascii_lowercase(), value.trim().to_owned());
        match name.as_str() {
            "range" => seen.range = Some(value.clone()),
            "authorization" => seen.authorization = Some(value.clone()),
            _ => {}
        }
        seen.headers.push((name, value));
    }
}

/// Sends an answer; `false` where the connection must not be used again.
async fn send(write: &mut OwnedWriteHalf, shared: &Shared, number: usize, answer: Answer) -> std::io::Result<bool> {
    let mut head = format!("HTTP/1.1 {} Testbed\r\n", answer.status);
    for (name, value) in &answer.headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    match answer.declared {
        true => head.push_str(&format!("Content-Length: {}\r\n\r\n", answer.body.len())),
        false => head.push_str("Transfer-Encoding: chunked\r\n\r\n"),
    }
    write.write_all(head.as_bytes()).await?;
    if answer.head {
        return Ok(true);
    }
    let mut sent = 0;
    loop {
        if answer.cut_after.is_some_and(|cut| sent as u64 >= cut) {
            return Ok(false);
        }
        if answer.stall_after.is_some_and(|stall| sent as u64 >= stall) {
            // An error would mean that the registry is gone.
            let _ = shared.open.subscribe().wait_for(|open| *open).await;
        }
        let left = answer.body.len() - sent;
        if left == 0 {
            break;
        }
        let stops = [answer.cut_after, answer.stall_after].into_iter().flatten().map(|at| at as usize);
        let next_stop = stops.filter(|at| *at > sent).map(|at| at - sent).min().unwrap_or(left);
        let piece = &answer.body[sent..sent + left.min(PIECE).min(next_stop)];
        shared.may_send(piece.len()).await;
        if !answer.declared {
            write.write_all(format!("{:x}\r\n", piece.len()).as_bytes()).await?;
        }
        write.write_all(piece).await?;
        if !answer.declared {
            write.write_all(b"\r\n").await?;
        }
        sent += piece.len();
        shared.note(|store| {
            if let Some(seen) = store.seen.get_mut(number) {
                seen.body_bytes = sent as u64;
            }
        });
    }
    if !answer.declared {
        write.write_all(b"0\r\n\r\n").await?;
    }
    Ok(true)
}
