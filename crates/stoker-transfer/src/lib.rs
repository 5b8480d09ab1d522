//! Bytes: references, registries, resumable fetches, a small registry to serve them.
