//! Standard output that a closed pipe ends quietly: `stoker get | head -1` is no error.

use std::io::Write as _;

/// Writes to standard output.
pub(crate) fn print(text: std::fmt::Arguments<'_>) {
    let mut out = std::io::stdout().lock();
    if let Err(problem) = out.write_fmt(text).and_then(|()| out.flush()) {
        let quiet = problem.kind() == std::io::ErrorKind::BrokenPipe;
        if !quiet {
            eprintln!("error: cannot write to standard output: {problem}");
        }
        std::process::exit(i32::from(!quiet));
    }
}

/// `print!` for users.
macro_rules! out {
    ($($part:tt)*) => { $crate::out::print(format_args!($($part)*)) };
}

/// `println!` for users.
macro_rules! outln {
    ($($part:tt)*) => { $crate::out::print(format_args!("{}\n", format_args!($($part)*))) };
}

pub(crate) use {out, outln};
