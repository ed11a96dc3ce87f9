//! The interpreter on small cases that can be checked by hand.

#![allow(clippy::unwrap_used, clippy::panic)] // helpers of tests fail as tests do

mod attention;
mod bench;
mod engram;
mod errors;
mod fixture;
mod index;
mod moe;
mod rows;
mod states;
