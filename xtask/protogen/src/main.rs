//! Makes Rust of the .proto files in a directory: `protogen PROTO_DIR OUT_DIR`. Needs no protoc.

use std::error::Error;
use std::path::PathBuf;

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args_os().skip(1).map(PathBuf::from);
    let (Some(from), Some(to)) = (args.next(), args.next()) else { return Err("usage: protogen PROTO_DIR OUT_DIR".into()) };
    let mut files: Vec<PathBuf> = std::fs::read_dir(&from)?.map(|entry| Ok(entry?.path())).collect::<Result<_, std::io::Error>>()?;
    files.retain(|file| file.extension().is_some_and(|extension| extension == "proto"));
    files.sort();
    let set = protox::compile(&files, [&from])?;
    tonic_prost_build::configure()
        .build_server(false)
        .bytes(".")
        .btree_map(".")
        // It holds a password; wire.rs writes a Debug that does not show it.
        .skip_debug(["runtime.v1.AuthConfig"])
        .out_dir(to)
        .compile_fds(set)?;
    Ok(())
}
