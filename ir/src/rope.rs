//! Rotary frequencies, formed in f32 as the published code forms them.

use crate::op::Rope;

/// `inv_freq_j` for `j` in `0 .. rotary/2`, in f32.
///
/// Without YaRN: `1 / base^(2j/rotary)`. With it, frequencies are mixed with their `1/factor` by a ramp between
/// the channels that turn `beta_fast` and `beta_slow` times over the original context. No magnitude factor.
/// Source: Peng et al., "YaRN", 2023, "NTK-by-parts".
pub fn inv_freq(rope: &Rope) -> Vec<f32> {
    let r = rope.rotary as f32;
    let base = rope.base as f32;
    let plain = (0..rope.rotary / 2).map(|j| 1.0f32 / base.powf((2 * j) as f32 / r));
    if rope.factor == 0.0 {
        return plain.collect();
    }
    let boundary = |beta: f64| {
        let turns = rope.original as f64 / (beta * 2.0 * std::f64::consts::PI);
        rope.rotary as f64 * turns.ln() / (2.0 * rope.base.ln())
    };
    let low = boundary(rope.beta_fast).floor().max(0.0);
    let high = boundary(rope.beta_slow).ceil().min(rope.rotary as f64 - 1.0);
    let span = ((high - low).max(1e-3)) as f32;
    plain
        .enumerate()
        .map(|(j, theta)| {
            let ramp = ((j as f32 - low as f32) / span).clamp(0.0, 1.0);
            let keep = 1.0 - ramp;
            theta / rope.factor as f32 * (1.0 - keep) + theta * keep
        })
        .collect()
}
