//! dsc-codegen.
