//! dsc-ir.
pub mod dtype;
