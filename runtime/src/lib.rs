//! dsc-runtime.
