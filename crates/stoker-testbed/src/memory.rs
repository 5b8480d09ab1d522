//! How much memory a process has, as the kernel counts it.

/// A field of /proc/PID/status in MiB, such as `RssAnon` or `VmHWM`; `None` where there is no such process.
pub fn of(pid: u32, field: &str) -> Option<f64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix(field))?;
    line.trim_start_matches(':').trim().trim_end_matches(" kB").parse::<f64>().ok().map(|kib| kib / 1024.0)
}
