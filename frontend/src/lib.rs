//! dsc-frontend.
pub mod spec;
