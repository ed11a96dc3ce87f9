//! dsc-codegen: from kernels to code.

pub mod loops;
