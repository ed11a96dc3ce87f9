//! `E02..`: an architecture that contradicts itself.

use crate::diag::code::codes;

codes! {
    /// A size does not divide another
    ///
    /// For example heads by output groups. The message shows both numbers and the nearest sizes that fit.
    E0201_DIVIDE = "E0201";

    /// Rotary channels do not fit
    ///
    /// Rotation works on pairs of channels at the end of a head, so `qk_rope_head_dim` is even and at most
    /// the width of every head it applies to.
    E0202_ROPE = "E0202";

    /// Scale groups do not divide a row
    ///
    /// Packed rows and quantised operands share one scale per 16, 32 or 64 channels; a row has to be whole
    /// groups.
    E0203_SCALE_GROUP = "E0203";

    /// A list does not have one entry per layer
    ///
    /// Lists per layer have `num_hidden_layers` entries. A map of layer patterns avoids counting.
    E0204_LAYER_COUNT = "E0204";

    /// A layer that does not exist
    ///
    /// Layers are numbered from 0 to `num_hidden_layers - 1`.
    E0205_NO_SUCH_LAYER = "E0205";

    /// A layer has no source of compressed rows
    ///
    /// A layer of ratio above 0 reads the rows of the nearest `kv_source_layer_ids` entry at or before it,
    /// which has to exist and have the same ratio.
    E0206_KV_SOURCE = "E0206";

    /// A layer has no selection
    ///
    /// A layer of ratio above 0 that is not dense reads the selection of the nearest
    /// `index_source_layer_ids` entry at or before it. Every source of compressed rows that are selected
    /// from is an index source too.
    E0207_INDEX_SOURCE = "E0207";

    /// Candidate blocks that cannot work
    ///
    /// The layer that picks candidate blocks is an index source, no source of compressed rows follows it,
    /// and the blocks hold at least `index_topk` rows even when the newest block has a single row.
    E0208_CANDIDATES = "E0208";

    /// Experts that cannot work
    ///
    /// A token takes at most as many experts as there are.
    E0209_EXPERTS = "E0209";

    /// An n-gram memory that cannot work
    ///
    /// The rows of each table are the sum of its bucket primes, which follow from `engram_vocab_size`,
    /// orders and heads; hash products have to stay below 2^63.
    E0211_ENGRAM = "E0211";

    /// The model cannot be split this way
    ///
    /// `parallel.tp` divides heads, output groups and the shared expert; `parallel.ep` divides routed
    /// experts. Each rank's part has to be whole scale groups.
    E0212_PARALLEL = "E0212";

    /// Settings that contradict each other
    ///
    /// Two keys are valid alone but not together; both places are shown.
    E0213_CONFLICT = "E0213";
}
