//! The calling convention of CPU kernels, agreed between code generator and runtime.
//!
//! A kernel is one CLIF function `%SYMBOL(i64 params, i64 dims, i64 begin, i64 end, i64 scratch)` with the host's
//! default C convention (`system_v` in the text; the runtime replaces it by the host's own):
//! - `params`: address of an array of pointers, one per kernel parameter in order;
//! - `dims`: address of five `i64`: `n_tokens`, `n_seqs`, `n_context`, `n_out_rows`, `n_tail_rows`;
//! - rows `begin .. end` of the kernel's row domain are computed, in ascending order;
//! - `scratch`: 64-byte aligned memory of the kernel's scratch size, private to the call.
//!
//! It may call the functions below by name, and no others.

/// A function lent by the runtime.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lent {
    /// Name in CLIF, without the `%`.
    pub name: &'static str,
    /// CLIF signature, for documentation and declaration.
    pub signature: &'static str,
}

/// `e^x`.
pub const EXP: Lent = Lent { name: "dsc_exp", signature: "(f32) -> f32" };
/// `ln(1 + x)`.
pub const LOG1P: Lent = Lent { name: "dsc_log1p", signature: "(f32) -> f32" };
/// Sine of an f32 angle, computed in f64 and rounded.
pub const SIN: Lent = Lent { name: "dsc_sin", signature: "(f32) -> f32" };
/// Cosine, likewise.
pub const COS: Lent = Lent { name: "dsc_cos", signature: "(f32) -> f32" };
/// Fused multiply-add, rounded once.
pub const FMA: Lent = Lent { name: "dsc_fma", signature: "(f32, f32, f32) -> f32" };
/// The dense micro-kernel: `y[i, j] = sum_k x[i, k] * w[j, k]` over f32 panels, arguments
/// `(y, y_stride, x, x_stride, w, m, n, k)`: addresses, strides in bytes between rows, sizes; `w` is contiguous.
/// The sum over `k` runs in 16 interleaved partial sums that are added pairwise, so that it depends on `k` alone,
/// never on `m` or `n`.
pub const DENSE: Lent = Lent { name: "dsc_dense", signature: "(i64, i64, i64, i64, i64, i64, i64, i64)" };

/// All lent functions.
pub const ALL: [Lent; 6] = [EXP, LOG1P, SIN, COS, FMA, DENSE];
