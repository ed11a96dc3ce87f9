//! The textual IR and the verifier.

#![allow(clippy::unwrap_used, clippy::panic)] // helpers of tests fail as tests do

mod graphs;
mod parse;
mod roundtrip;
mod verify;
