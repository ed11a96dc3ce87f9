//! `E03..`: budgets that the built result exceeds.

use crate::diag::code::codes;

codes! {
    /// The KV cache grows faster than the budget
    ///
    /// `budgets.kv_bytes_per_token` bounds the bytes each token adds to the caches for good. Rings of the
    /// sliding window do not count: they do not grow.
    E0304_KV_BUDGET = "E0304";

    /// More launches than the budget
    ///
    /// `budgets.launches` bounds the kernel launches of a layer kind or of a whole step. `dsc explain`
    /// lists them with the reasons why they were not fused.
    E0305_LAUNCH_BUDGET = "E0305";
}
