//! Random contents as a recipe: what a seed, a name and a type give again on any machine, byte for byte.

use crate::memory::Bytes;
use crate::weights::random::{Rng, tensor, weight};
use crate::weights::weight_bytes;
use dsc_ir::dtype::DType;
use dsc_ir::manifest::Weight;
use serde::{Deserialize, Serialize};

/// How to make the contents of a tensor of floats, packed rows or a weight.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Recipe {
    /// What `--weights random:SEED` gives this weight.
    Weight {
        /// Seed.
        seed: u64,
        /// The weight.
        weight: Weight,
    },
    /// Rows of unit size.
    Rows {
        /// Seed.
        seed: u64,
        /// Name of the random numbers.
        stream: String,
        /// Element type.
        dtype: DType,
        /// Channels of a row; unpacked rows do not depend on it.
        channels: u64,
    },
}

impl Recipe {
    /// The contents, of `bytes` bytes.
    ///
    /// # Errors
    /// A weight of another size, or too little memory.
    pub fn make(&self, bytes: u64) -> Result<Bytes, String> {
        match self {
            Recipe::Weight { seed, weight: w } => {
                // No format has more than two channels a byte; the product must not overflow below.
                let cells = w.shape.iter().try_fold(1u64, |n, s| n.checked_mul(*s));
                if cells.is_none_or(|n| n > bytes.saturating_mul(2)) || weight_bytes(w) != bytes {
                    return Err(format!("a weight `{}` of shape {:?} has not {bytes} bytes", w.name, w.shape));
                }
                weight(*seed, w, None).map_err(|e| e.to_string())
            }
            Recipe::Rows { seed, stream, dtype, channels } => {
                if *channels > bytes.saturating_mul(2) {
                    return Err(format!("rows of {channels} channels do not fit {bytes} bytes"));
                }
                let mut out = Bytes::zeroed(bytes).map_err(|e| e.to_string())?;
                tensor(*dtype, *channels, out.as_mut(), Rng::new(*seed, stream));
                Ok(out)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dsc_ir::dtype::{RowFormat, WeightFormat};

    fn weight_of(shape: &[u64]) -> Recipe {
        let dtype = DType::Weight(WeightFormat::Fp8 { tile: 32 });
        let weight = Weight {
            name: "w".into(),
            layer: Some(3),
            tensor: "w".into(),
            dtype,
            shape: shape.into(),
            shard: "none".into(),
        };
        Recipe::Weight { seed: 7, weight }
    }

    #[test]
    fn contents_survive_the_text_form() {
        let rows = Recipe::Rows { seed: 7, stream: "0/x".into(), dtype: DType::Packed(RowFormat::Fp8), channels: 64 };
        for (recipe, bytes) in [(weight_of(&[64, 64]), 64 * 64 + 4), (rows, 66 * 5)] {
            let text = serde_json::to_string(&recipe).unwrap();
            let again: Recipe = serde_json::from_str(&text).unwrap();
            assert_eq!(again, recipe);
            let (a, b) = (recipe.make(bytes).unwrap(), again.make(bytes).unwrap());
            assert_eq!(a.as_ref(), b.as_ref());
            assert!(a.as_ref().iter().any(|x| *x != a.as_ref()[0]));
        }
    }

    #[test]
    fn sizes_are_checked() {
        assert!(weight_of(&[64, 64]).make(64).is_err());
        assert!(weight_of(&[u64::MAX, 8]).make(64).is_err());
        let rows = Recipe::Rows { seed: 1, stream: String::new(), dtype: DType::F32, channels: u64::MAX };
        assert!(rows.make(8).is_err());
    }
}
