//! dsc-passes.
