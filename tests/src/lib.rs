//! dsc-tests.
