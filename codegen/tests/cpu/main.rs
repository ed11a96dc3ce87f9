//! CPU kernels against the interpreter: every op alone and in chains, whatever the row block, however the rows
//! are split, with values kept inside the kernel or not.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // tests may panic
#![allow(unsafe_code)] // compiled kernels are called through pointers

mod case;
mod jit;

mod chains;
mod ops;
mod positions;
