//! The agent's shell: orders become pulls, outcomes become reports.
