//! The textual IR of op graphs: [`print()`] and [`parse`], which round-trip exactly.
//!
//! ```text
//! graph decode {
//!   %0: i32[n_tokens, 8] = input "step"
//!   %1: w.fp8_32[64, 64] = weight "attn.wq_a" layer 3 from "layers.3.attn.wq_a"
//!   %2: row.fp8[n_seqs, 135, 64] = state "swa" layer 3 ring keep 128
//!   %4: f32[n_tokens, 64] = linear(%3, %1) layer 3 name "attn.q"
//!   return %4
//! }
//! ```
//! Values may be numbered, as printed, or named (`%x`); names are numbered in the order of definition. A
//! result without a `name` is called by its own `%` word. `;` starts a comment.

mod parse;
mod print;

pub use parse::{ParseError, parse, parse_all};
pub use print::print;
