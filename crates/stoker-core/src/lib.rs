//! The model and every decision: pure, synchronous, deterministic.
