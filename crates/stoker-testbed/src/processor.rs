//! How long a process has used a processor, as the kernel counts it.

/// Ticks of the kernel in a second, on every architecture that Linux shows to programs.
const TICKS: f64 = 100.0;

/// The seconds that all threads of a process have used, in the program and in the kernel; `None` where there is no such process.
pub fn seconds(pid: u32) -> Option<f64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name of the program comes second, in parentheses, and may contain anything.
    let (_, fields) = stat.rsplit_once(')')?;
    let ticks = fields.split_whitespace().skip(11).take(2).map(|ticks| ticks.parse::<f64>().ok());
    Some(ticks.sum::<Option<f64>>()? / TICKS)
}
