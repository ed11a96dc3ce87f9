//! dsc-ir: what a model computes and what kernels run, as data.
//!
//! In reading order: element types and row formats ([`dtype`]), symbolic sizes ([`expr`]), operations
//! ([`op`]), the op graph ([`graph`]) with its shape rules ([`infer`]), and beside them diagnostics
//! ([`diag`]) and targets ([`target`]).

pub mod cost;
pub mod cpu_abi;
pub mod diag;
pub mod dtype;
pub mod expr;
pub mod format;
pub mod graph;
pub mod infer;
pub mod interp;
pub mod kernel;
pub mod manifest;
pub mod op;
pub mod rope;
pub mod schedule;
pub mod target;
pub mod text;
pub mod verify;
