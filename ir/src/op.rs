//! The closed set of operations. Each op's doc comment is its meaning; `infer` holds its shape rule,
//! `cost` its work, `interp` its reference evaluation.
//!
//! Conventions used below
//! - `T` = rows of the step (`n_tokens`), one per token; row `t` belongs to sequence `seq(t)` at absolute
//!   position `pos(t)`. A step holds a run of consecutive positions for each of its sequences.
//! - `%step` is the step table `i32[n_tokens, 8]`, columns in [`step`]. Where only the end of each prompt goes through
//!   the layers after the last source, those layers have a table of their own, `i32[n_tail_rows, 8]`: a step in which
//!   each sequence's rows start with the first replayed one, which is also the floor of its window. `T` is then
//!   `n_tail_rows`.
//! - "Float" operands are `f32` or `bf16` tensors, or packed rows, which read as their decoded values.
//!   Arithmetic is in f32; a result is rounded once, to the dtype of the value that holds it.
//! - A **ring** is a state `[n_seqs, slots, c]`: position `p` of a sequence sits in slot `p mod slots`.
//!   **Reading position `p` by position** means: from the step's own rows when `p >= start(t)` (row
//!   `row0(t) + p - start(t)`), else from the ring. Sums over positions run in ascending position.
//! - **Pages** are a state `[n_seqs, ceil(n_context, ratio), c]`: entry `g` of a sequence covers positions
//!   `g*ratio .. (g+1)*ratio`. A row *completes* an entry when `(pos + 1) % ratio == 0`. Entry `g` is
//!   *visible* to row `t` when `g < (pos(t) + 1) / ratio` (integer division).
//! - Ties in every selection: the lower index wins.

use crate::dtype::RowFormat;
use crate::graph::TypeError;
use std::fmt;

/// Columns of the step table.
pub mod step {
    /// Number of columns.
    pub const COLUMNS: u64 = 8;
    /// Token id.
    pub const ID: u64 = 0;
    /// Absolute position.
    pub const POS: u64 = 1;
    /// Sequence (index into the states' first axis).
    pub const SEQ: u64 = 2;
    /// Position of the sequence's first row in this step.
    pub const START: u64 = 3;
    /// Row of the sequence's first row in this step.
    pub const ROW0: u64 = 4;
    /// Position after the sequence's last row in this step.
    pub const END: u64 = 5;
    /// 1 for rows of an image span.
    pub const IMAGE: u64 = 6;
    /// First position that the row's window may see; 0 except for rows that are replayed.
    pub const FLOOR: u64 = 7;
}

/// An attribute's value in the textual IR.
#[derive(Debug, Clone, PartialEq)]
pub enum Attr {
    /// `true` or `false`.
    Bool(bool),
    /// An integer.
    Int(u64),
    /// A float, printed so that it reads back equal.
    Float(f64),
    /// A bare word.
    Word(String),
    /// A list of integers.
    List(Vec<u64>),
}

impl fmt::Display for Attr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Attr::Bool(b) => write!(f, "{b}"),
            Attr::Int(i) => write!(f, "{i}"),
            Attr::Float(x) => write!(f, "{x:?}"),
            Attr::Word(w) => f.write_str(w),
            Attr::List(v) => {
                f.write_str("[")?;
                for (i, x) in v.iter().enumerate() {
                    write!(f, "{}{x}", if i > 0 { ", " } else { "" })?;
                }
                f.write_str("]")
            }
        }
    }
}

trait AttrType: Sized {
    fn put(&self) -> Attr;
    fn take(attr: &Attr) -> Option<Self>;
}

macro_rules! int_attr {
    ($($t:ty),*) => {$(
        impl AttrType for $t {
            fn put(&self) -> Attr { Attr::Int(u64::from(*self)) }
            fn take(attr: &Attr) -> Option<Self> {
                match attr { Attr::Int(i) => <$t>::try_from(*i).ok(), _ => None }
            }
        }
    )*};
}
int_attr!(u32, u64);

impl AttrType for bool {
    fn put(&self) -> Attr {
        Attr::Bool(*self)
    }
    fn take(attr: &Attr) -> Option<Self> {
        match attr {
            Attr::Bool(b) => Some(*b),
            _ => None,
        }
    }
}

impl AttrType for f64 {
    fn put(&self) -> Attr {
        Attr::Float(*self)
    }
    fn take(attr: &Attr) -> Option<Self> {
        match attr {
            Attr::Float(x) => Some(*x),
            Attr::Int(i) => Some(*i as f64),
            _ => None,
        }
    }
}

impl AttrType for f32 {
    fn put(&self) -> Attr {
        // The shortest text of the f32, so that it prints as written in the spec.
        Attr::Float(format!("{self:?}").parse().unwrap_or(f64::from(*self)))
    }
    fn take(attr: &Attr) -> Option<Self> {
        f64::take(attr).map(|x| x as f32)
    }
}

impl AttrType for Vec<u64> {
    fn put(&self) -> Attr {
        Attr::List(self.clone())
    }
    fn take(attr: &Attr) -> Option<Self> {
        match attr {
            Attr::List(v) => Some(v.clone()),
            _ => None,
        }
    }
}

impl AttrType for RowFormat {
    fn put(&self) -> Attr {
        Attr::Word(self.name())
    }
    fn take(attr: &Attr) -> Option<Self> {
        match attr {
            Attr::Word(w) => RowFormat::parse(w),
            _ => None,
        }
    }
}

/// Where a rotation takes its position from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RopeAt {
    /// The row's own position.
    Token,
    /// The first position of the entry that the row completes: `pos / ratio * ratio`.
    Entry,
}

/// Which compressed entries an attention reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Select {
    /// None: window only.
    None,
    /// Those listed by an index operand.
    Listed,
    /// Every visible one.
    All,
}

macro_rules! word_attr {
    ($t:ty { $($v:ident = $w:literal),* }) => {
        impl AttrType for $t {
            fn put(&self) -> Attr { Attr::Word(match self { $(<$t>::$v => $w),* }.into()) }
            fn take(attr: &Attr) -> Option<Self> {
                match attr { Attr::Word(w) => match w.as_str() { $($w => Some(<$t>::$v),)* _ => None }, _ => None }
            }
        }
    };
}
word_attr!(RopeAt { Token = "token", Entry = "entry" });
word_attr!(Select { None = "none", Listed = "listed", All = "all" });

macro_rules! ops {
    ($( $(#[$doc:meta])* $name:ident = $text:literal { $( $(#[$fdoc:meta])* $field:ident : $ty:ty ),* } )*) => {
        $( $(#[$doc])* #[derive(Debug, Clone, PartialEq)] pub struct $name { $( $(#[$fdoc])* pub $field: $ty ),* } )*

        /// Any operation.
        #[derive(Debug, Clone, PartialEq)]
        #[allow(missing_docs)] // each variant is documented at its struct
        pub enum Op { $( $name($name) ),* }

        $( impl From<$name> for Op { fn from(op: $name) -> Op { Op::$name(op) } } )*

        impl Op {
            /// Name in the textual IR.
            pub fn name(&self) -> &'static str {
                match self { $( Op::$name(_) => $text ),* }
            }

            /// Names of all ops.
            pub const NAMES: &'static [&'static str] = &[ $( $text ),* ];

            /// Attributes in declaration order.
            pub fn attrs(&self) -> Vec<(&'static str, Attr)> {
                match self { $( Op::$name(op) => { let _ = op; vec![ $( (stringify!($field), op.$field.put()) ),* ] } ),* }
            }

            /// The op of this name and attributes.
            ///
            /// # Errors
            /// Unknown name, missing, mistyped or unknown attribute.
            pub fn from_attrs(name: &str, attrs: &[(String, Attr)]) -> Result<Op, TypeError> {
                match name {
                    $( $text => {
                        let known: &[&str] = &[ $( stringify!($field) ),* ];
                        if let Some((k, _)) = attrs.iter().find(|(k, _)| !known.contains(&k.as_str())) {
                            return Err(TypeError::new(format!("`{}` has no attribute `{k}`", $text)));
                        }
                        Ok(Op::$name($name { $( $field: find_attr($text, attrs, stringify!($field))? ),* }))
                    } )*
                    _ => Err(TypeError::new(format!("there is no op `{name}`"))),
                }
            }
        }
    };
}

fn find_attr<T: AttrType>(op: &str, attrs: &[(String, Attr)], name: &str) -> Result<T, TypeError> {
    let attr = attrs.iter().find(|(k, _)| k == name).map(|(_, a)| a);
    attr.and_then(T::take).ok_or_else(|| TypeError::new(format!("`{op}` needs a valid attribute `{name}`")))
}

ops! {
    /// Table lookup by token id. Inputs: `table [V, d]` weight, `%step`. Output: float `[T, d]`.
    Embed = "embed" {}

    /// Copies a row into `n` streams. Inputs: `x [T, d]`. Output: float `[T, n, d]`.
    Repeat = "repeat" {
        /// Streams.
        n: u64
    }

    /// A one-hot row for every token. Inputs: `%step` (for the number of rows). Output: `f32 [T, n]`.
    OneHot = "one_hot" {
        /// Width.
        n: u64,
        /// Where the 1 is.
        index: u64
    }

    /// Rows by number. Inputs: `x [T, ..]`, `rows i32[M]`. Output: `[M, ..]` of `x`'s dtype (packed rows are copied).
    TakeRows = "take_rows" {}

    /// Residual sum. Inputs: `x`, `y` of one shape. Output: float of that shape.
    Add = "add" {}

    /// Projection of the flattened streams with RMS division after it:
    /// `m_j = (sum_i x_i fn_ji) * rsqrt(mean(x^2) + eps)` over `i` in `n*d`.
    /// Inputs: `x [T, n, d]`, `fn [m, n*d]` weight. Output: `f32 [T, m]`.
    MhcStats = "mhc_stats" {
        /// Under the root.
        eps: f32
    }

    /// Mix coefficients of hyper-connections from `m [T, (2+n)n]`, with `scale [3]` and `base [(2+n)n]` weights:
    /// `pre_j = sigmoid(fma(m_j, scale_0, base_j)) + eps`, `post_j = 2 sigmoid(fma(m_{n+j}, scale_1, base_{n+j}))`,
    /// `C_ij = fma(m_{2n+n*i+j}, scale_2, base_{2n+n*i+j})`; then `C = softmax_j(C) + eps`, columns divided by
    /// (column sum + eps), and `iters - 1` times rows by (row sum + eps), columns by (column sum + eps).
    /// Outputs: `pre f32[T, n]`, `post f32[T, n]`, `comb f32[T, n, n]` (row = input stream).
    /// Source: architecture of single-pass mHC; order of normalisations as published.
    MhcCoeffs = "mhc_coeffs" {
        /// Sinkhorn iterations, the softmax pass included.
        iters: u32,
        /// Added as above.
        eps: f32
    }

    /// Learned head mix: `w_j = sigmoid(fma(m_j, scale_0, base_j)) + eps`.
    /// Inputs: `m [T, n]`, `scale [1]`, `base [n]` weights. Output: `f32 [T, n]`.
    HeadCoeffs = "head_coeffs" {
        /// Added to each weight.
        eps: f32
    }

    /// Weighted sum of streams: `y_c = sum_j p_j x_jc`. Inputs: `x [T, n, d]`, `p [T, n]`. Output: float `[T, d]`.
    Collapse = "collapse" {}

    /// Sublayer output into the streams: `x'_jc = post_j y_c + sum_i comb_ij x_ic`.
    /// Inputs: `y [T, d]`, `x [T, n, d]`, `post [T, n]`, `comb [T, n, n]`. Output: float `[T, n, d]`.
    Expand = "expand" {}

    /// Root-mean-square normalisation over the last axis: `y = x * rsqrt(mean(x^2) + eps) [* w]`.
    /// Inputs: `x [T, .., c]`, optionally `w [c]` weight. Output: float of `x`'s shape.
    /// Source: Zhang & Sennrich, "Root Mean Square Layer Normalization", 2019, eq. 4.
    RmsNorm = "rms_norm" {
        /// Under the root.
        eps: f32
    }

    /// Rotation of adjacent pairs in the last `rotary` channels of the last axis by the angle
    /// `p * inv_freq_j` (f32 product; sine and cosine of that f32 angle), `inv_freq` from [`crate::rope`].
    /// Inputs: `x [T, .., c]`, `%step`. Output: float of `x`'s shape.
    /// Source: Su et al., "RoFormer", 2021, with YaRN frequencies (Peng et al., 2023).
    Rope = "rope" {
        /// Rotated channels (even).
        rotary: u64,
        /// Conjugate rotation.
        inverse: bool,
        /// Position rule.
        at: RopeAt,
        /// Tokens per entry, for [`RopeAt::Entry`].
        ratio: u32,
        /// Frequency base.
        base: f64,
        /// YaRN factor; 0 for none.
        factor: f64,
        /// YaRN original context.
        original: u64,
        /// YaRN fast boundary.
        beta_fast: f64,
        /// YaRN slow boundary.
        beta_slow: f64
    }

    /// Walsh-Hadamard transform of the last axis (a power of two `c`), natural order, scaled by `c^-0.5`.
    /// Inputs: `x [T, .., c]`. Output: float of `x`'s shape.
    Hadamard = "hadamard" {}

    /// Packs rows. Inputs: `x [T, .., c]`. Output: `row.FORMAT [T, .., c]`. Rounding as in [`crate::format`].
    Quantize = "quantize" {
        /// Target format.
        format: RowFormat
    }

    /// One or several linears over one input: `y_i = x w_i^T`.
    /// Inputs: `x [M, ..]` (all axes after the first are flattened to `k`), `w_i [n_i, k]` weights. Outputs: float `[M, n_i]`,
    /// or `[M, h, n_i / h]` where `heads` has `h > 0` for it (the same memory).
    Linear = "linear" {
        /// Heads of each output; 0 for none.
        heads: Vec<u64>
    }

    /// Block-diagonal linear: group `g` of `x` (of `k/groups` channels) times rows `g*n/groups ..` of `w`.
    /// Inputs: `x [T, ..]` (flattened to `k`), `w [n, k/groups]` weight. Output: float `[T, n]`.
    GroupLinear = "group_linear" {
        /// Groups.
        groups: u64
    }

    /// Writes rows into a ring: row `t` goes to slot `pos mod slots` of its sequence, for rows with
    /// `pos >= end - slots`. Inputs: ring state, `x [T, ..]`, `%step`. No output.
    RingWrite = "ring_write" {}

    /// Writes the rows that complete an entry: row `t` becomes entry `pos / ratio`. Inputs: pages state,
    /// `x [T, ..]`, `%step`. No output.
    PageWrite = "page_write" {
        /// Tokens per entry.
        ratio: u32
    }

    /// Gated pooling of a group of tokens, for rows that complete an entry (others give 0).
    /// Per channel: softmax over the slots' gates `s (+ ape)`, weighted sum of `v`.
    /// Without `overlap`: the `ratio` positions of the entry, all channels (`c = D`).
    /// With `overlap` (`c = 2D`): `2*ratio` slots, first the previous entry's positions with channels `0..D`,
    /// then this entry's with channels `D..2D`; the first entry has only the latter.
    /// Position `p` is read by position; its slot of `ape [ratio, c]` is `p mod ratio`.
    /// Inputs: `v [T, c]`, `s [T, c]`, ring of `v`, ring of `s`, `%step`, and with `bias` the `ape` weight.
    /// Output: float `[T, D]`.
    Pool = "pool" {
        /// Tokens per entry.
        ratio: u32,
        /// Two windows.
        overlap: bool,
        /// Whether there is an `ape` operand.
        bias: bool
    }

    /// Index scores `I[t, g] = scale * sum_h w[t, h] * relu(q[t, h] . key_g)` for visible entries; -inf for others.
    /// Without `blocks`: column `g` is entry `g`, `ceil(n_context, ratio)` columns. With a `blocks i32[T, B]` operand:
    /// column `b*block + i` is entry `blocks[t, b]*block + i`, -inf where the block id is -1; `B*block` columns.
    /// Inputs: `q [T, H, D]`, `w [T, H]`, pages of keys `[.., D]`, `%step`, optionally `blocks`. Output: `f32 [T, N]`.
    IndexScores = "index_scores" {
        /// Tokens per entry.
        ratio: u32,
        /// Entries per candidate block; 0 without `blocks`.
        block: u64,
        /// Factor on the sum.
        scale: f32
    }

    /// The `k` best columns with a score above -inf, as entry ids in ascending order, padded with -1.
    /// Inputs: `scores [T, N]`, `%step`, optionally `blocks i32[T, B]` (columns as in [`IndexScores`]). Output: `i32 [T, k]`.
    TopK = "top_k" {
        /// How many.
        k: u64,
        /// Tokens per entry.
        ratio: u32,
        /// Entries per candidate block; 0 without `blocks`.
        block: u64
    }

    /// The `keep` best blocks of `block` entries by their largest visible score, the block that holds the newest
    /// visible entry always among them; ascending ids, padded with -1; blocks without a visible entry never.
    /// Inputs: `scores [T, N]`, `%step`. Output: `i32 [T, keep]`.
    CandidateBlocks = "candidate_blocks" {
        /// Tokens per entry.
        ratio: u32,
        /// Entries per block.
        block: u64,
        /// Blocks kept.
        keep: u64
    }

    /// Softmax attention of `H` heads over one shared latent (keys = values): the window positions
    /// `max(floor, pos - window + 1) ..= pos` in ascending order, read by position, then selected compressed entries
    /// in ascending order. `o_h = sum_j p_j kv_j / (sum_j p_j + exp(sink_h - m))`, `p_j = exp(scale * q_h . kv_j - m)`,
    /// `m` the largest scaled score. With `round_probs`, `p` is rounded to bf16 before the product with `kv` (not in the sum).
    /// Inputs: `q [T, H, D]`, `rows [T, D]`, ring `[.., D]`, `%step`, then with `sink` a weight `[H]`, then unless
    /// `select` is none the pages `[.., D]`, then with `select` listed `idx i32[T, K]` (-1 is empty). Output: float `[T, H, D]`.
    SparseAttention = "sparse_attention" {
        /// Window length in tokens.
        window: u64,
        /// Tokens per entry (0 with `select` none).
        ratio: u32,
        /// Factor on scores.
        scale: f32,
        /// Whether there is a sink operand.
        sink: bool,
        /// Compressed entries.
        select: Select,
        /// Rounding of probabilities.
        round_probs: bool
    }

    /// Router: `s = sqrt(softplus(z))` (`softplus(x) = x` above 20), the `k` experts with the largest `s + bias`, best first,
    /// weights `s` of the chosen, divided by (their sum + 1e-20) with `norm` when `k > 1`, times `scale`.
    /// Inputs: `z [T, E]`, `bias [E]` weight, `%step`, and with `image_bias` a weight `[E]` that replaces `bias` for image rows.
    /// Outputs: `i32 [T, k]`, `f32 [T, k]`.
    RouterTopK = "router_top_k" {
        /// Experts per token.
        k: u64,
        /// Whether weights are normalised.
        norm: bool,
        /// Factor on weights.
        scale: f32,
        /// Whether image rows have their own bias.
        image_bias: bool
    }

    /// Router by token id: experts `table[id]`, weights as in [`RouterTopK`].
    /// Inputs: `z [T, E]`, `table i32[V, k]` weight, `%step`. Outputs: `i32 [T, k]`, `f32 [T, k]`.
    RouterHash = "router_hash" {
        /// Experts per token.
        k: u64,
        /// Whether weights are normalised.
        norm: bool,
        /// Factor on weights.
        scale: f32
    }

    /// Experts that this rank holds, by its own numbers: `y = map[ids]`, -1 for the others.
    /// Inputs: `ids i32[T, k]`, `map i32[E]` weight. Output: `i32 [T, k]`.
    LocalExperts = "local_experts" {}

    /// Linears of the chosen experts: `y_i[t, j] = x[t (, j)] w_i[ids[t, j]]^T`.
    /// An id outside `0..E` is no expert: its rows are 0.
    /// Inputs: `x [T, c]` or `[T, k, c]`, `ids i32[T, k]`, `w_i [E, n_i, c]` weights. Outputs: float `[T, k, n_i]`.
    ExpertLinear = "expert_linear" {}

    /// Clamped SwiGLU: `silu(min(g, limit)) * clamp(u, -limit, limit)` (no clamp at limit 0), with `weighted` times `w[t, j]`.
    /// Inputs: `g`, `u` of shape `[T, .., c]`, and with `weighted` `w [T, k]` (then `g` is `[T, k, c]`). Output: float of that shape.
    SwiGlu = "swiglu" {
        /// Clamp.
        limit: f32,
        /// Whether there is a weight operand.
        weighted: bool
    }

    /// Sum of expert outputs in ascending expert id, then the shared expert's.
    /// Inputs: `y [T, k, d]`, `ids i32[T, k]`, and with `shared` `[T, d]`. Output: float `[T, d]`.
    ExpertSum = "expert_sum" {
        /// Whether there is a shared operand.
        shared: bool
    }

    /// n-gram hashes: with `c_k` the compressed id (`map[id]`) `k` positions back, the pad id from the first
    /// look-back on that leaves the sequence or meets an image row (the row itself included),
    /// `a_0 = c_0 m_0`, `a_k = a_{k-1} xor (c_k m_k)`; row of order `k+1` and head `j` is `a_k mod prime + offset`, offsets
    /// the running sums of a layer's primes. The ring holds compressed ids (-1 for image rows), positions before the step are read from it.
    /// Inputs: `map i32[V]` weight, `%step`, ring `i32 [n_seqs, slots, 1]`. Outputs: `i32 [T, layers, orders*heads]`, `i32 [T, 1]` compressed ids (-1 for image rows).
    EngramHash = "engram_hash" {
        /// Memory layers.
        layers: u64,
        /// Largest n-gram; orders 2 up to it.
        max_ngram: u64,
        /// Heads per order.
        heads: u64,
        /// Token id whose compressed id is the pad.
        pad_token: u64,
        /// `layers * max_ngram` odd factors.
        multipliers: Vec<u64>,
        /// `layers * orders * heads` bucket counts.
        primes: Vec<u64>
    }

    /// Rows of an embedding table side by side. Inputs: `table row.FORMAT [rows, c]` weight, `idx i32[T, layers, m]`. Output: float `[T, m*c]`.
    EngramGather = "engram_gather" {
        /// Which plane of `idx`.
        plane: u64
    }

    /// Gated injection of a memory into the streams. `kv [T, (n+1)d]`: keys `[n, d]` then one value `[d]`.
    /// `dot_j = (sum_c x_jc qw_jc kw_jc key_jc) * rsqrt(mean(x_j^2) + eps) * rsqrt(mean(key_j^2) + eps) * d^-0.5`,
    /// `gate_j = sigmoid(copysign(sqrt(max(|dot_j|, 1e-6)), dot_j))`, 0 for image rows; `x'_j = x_j + gate_j * value`.
    /// Inputs: `x [T, n, d]`, `kv [T, (n+1)d]`, `qw [n, d]`, `kw [n, d]` weights, `%step`. Output: float `[T, n, d]`.
    EngramInject = "engram_inject" {
        /// Under the roots.
        eps: f32
    }

    /// Sum over a parallel group: `ranks` consecutive ranks, the first of them a multiple of `ranks`, in ascending order.
    /// Inputs: `x`. Output: float of `x`'s shape.
    AllReduce = "all_reduce" {
        /// Ranks.
        ranks: u64
    }
}

/// How an op reads an operand: what must hold for producer and consumer to share a kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Row `t` of the result reads row `t` of the operand only.
    Row,
    /// Other rows too: the operand must be complete before the kernel starts.
    Gather,
}

impl Op {
    /// Access to operand `i`.
    pub fn access(&self, i: usize) -> Access {
        let gather = match self {
            Op::TakeRows(_) => i == 0,
            Op::Pool(_) => i < 4,
            Op::IndexScores(_) => i == 2,
            Op::SparseAttention(a) => {
                let pages = 4 + usize::from(a.sink);
                i == 1 || i == 2 || (a.select != Select::None && i == pages)
            }
            Op::EngramHash(_) => i == 2,
            Op::AllReduce(_) => true,
            Op::Embed(_)
            | Op::Repeat(_)
            | Op::OneHot(_)
            | Op::Add(_)
            | Op::MhcStats(_)
            | Op::MhcCoeffs(_)
            | Op::HeadCoeffs(_)
            | Op::Collapse(_)
            | Op::Expand(_)
            | Op::RmsNorm(_)
            | Op::Rope(_)
            | Op::Hadamard(_)
            | Op::Quantize(_)
            | Op::Linear(_)
            | Op::GroupLinear(_)
            | Op::RingWrite(_)
            | Op::PageWrite(_)
            | Op::TopK(_)
            | Op::CandidateBlocks(_)
            | Op::RouterTopK(_)
            | Op::RouterHash(_)
            | Op::LocalExperts(_)
            | Op::ExpertLinear(_)
            | Op::SwiGlu(_)
            | Op::ExpertSum(_)
            | Op::EngramGather(_)
            | Op::EngramInject(_) => false,
        };
        if gather { Access::Gather } else { Access::Row }
    }

    /// Whether the op writes its first operand (a state).
    pub fn writes_state(&self) -> bool {
        matches!(self, Op::RingWrite(_) | Op::PageWrite(_))
    }
}
