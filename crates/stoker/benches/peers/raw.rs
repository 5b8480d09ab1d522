//! One file over one TCP connection, as fast as the link lets it.

use std::fs::File;
use std::io::{self, Read as _};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::{Outcome, RAW};

/// Sends a file to the first one who comes. On Linux the kernel moves the bytes.
pub(crate) fn send(file: &Path) -> Outcome<()> {
    let (mut stream, _) = TcpListener::bind(RAW)?.accept()?;
    io::copy(&mut File::open(file)?, &mut stream)?;
    Ok(())
}

/// Takes so many bytes, and prints the seconds from the first connection to the last byte.
pub(crate) fn take(size: usize) -> Outcome<()> {
    let mut stream = loop {
        match TcpStream::connect(RAW) {
            Ok(stream) => break stream,
            // The sender has just been started.
            Err(_) => sleep(Duration::from_millis(2)),
        }
    };
    let (start, mut piece, mut taken) = (Instant::now(), vec![0; 256 << 10], 0);
    while taken < size {
        match stream.read(&mut piece)? {
            0 => return Err("the sender ended early".into()),
            read => taken += read,
        }
    }
    println!("{}", start.elapsed().as_secs_f64());
    Ok(())
}
