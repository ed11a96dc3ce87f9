//! Element types, packed row formats of caches and activations, and storage formats of weights.

use serde::{Deserialize, Serialize};
use std::fmt;

/// Element type of a tensor.
///
/// A [`DType::Packed`] tensor is a list of rows along its last axis: each row of `c` channels is stored
/// as [`RowFormat::row_bytes`]`(c)` bytes, data first and scales after. A [`DType::Weight`] tensor is a
/// checkpoint matrix `[n, k]` (or `[experts, n, k]`): all data first and all scales after.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub enum DType {
    /// 32-bit float.
    F32,
    /// bfloat16.
    Bf16,
    /// 32-bit signed integer.
    I32,
    /// Packed rows.
    Packed(RowFormat),
    /// A weight matrix in its storage format.
    Weight(WeightFormat),
}

/// Packed formats of rows (caches, quantised activations, embedding tables).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum RowFormat {
    /// 32-bit floats, 4 bytes a channel.
    F32,
    /// bfloat16, 2 bytes a channel.
    Bf16,
    /// E4M3 with one UE8M0 scale per 32 channels (`fp8`: window rows, linear operands).
    Fp8,
    /// E2M1 with one UE8M0 scale per 32 channels (`mxfp4`: index keys and queries).
    MxFp4,
    /// E2M1 with one E4M3 scale per 16 channels (`fp4`: compressed rows).
    Fp4,
    /// `c - rope` E4M3 channels with one UE8M0 scale per 64, then `rope` bf16 channels, the scales, and
    /// padding of the scales to a multiple of 8 bytes (V4's 584-byte rows: 448 + 64 channels).
    Fp8Rope {
        /// Channels at the end that stay bf16.
        rope: u16,
    },
}

impl RowFormat {
    /// Channels that share one scale; 0 where there are no scales.
    pub fn group(self) -> u64 {
        match self {
            RowFormat::F32 | RowFormat::Bf16 => 0,
            RowFormat::Fp8 | RowFormat::MxFp4 => 32,
            RowFormat::Fp4 => 16,
            RowFormat::Fp8Rope { .. } => 64,
        }
    }

    /// Bytes of the data part of a row of `channels`.
    pub fn data_bytes(self, channels: u64) -> u64 {
        match self {
            RowFormat::F32 => channels * 4,
            RowFormat::Bf16 => channels * 2,
            RowFormat::Fp8 => channels,
            RowFormat::MxFp4 | RowFormat::Fp4 => channels.div_ceil(2),
            RowFormat::Fp8Rope { rope } => {
                let rope = u64::from(rope).min(channels);
                (channels - rope) + 2 * rope
            }
        }
    }

    /// Bytes of the scale part of a row of `channels`.
    pub fn scale_bytes(self, channels: u64) -> u64 {
        match self {
            RowFormat::F32 | RowFormat::Bf16 => 0,
            RowFormat::Fp8 | RowFormat::MxFp4 | RowFormat::Fp4 => channels.div_ceil(self.group()),
            RowFormat::Fp8Rope { rope } => {
                let quantised = channels.saturating_sub(u64::from(rope));
                quantised.div_ceil(64).next_multiple_of(8)
            }
        }
    }

    /// Bytes of a row of `channels`, data then scales.
    pub fn row_bytes(self, channels: u64) -> u64 {
        self.data_bytes(channels) + self.scale_bytes(channels)
    }

    /// Name in specs and in the textual IR.
    pub fn name(self) -> String {
        match self {
            RowFormat::F32 => "f32".into(),
            RowFormat::Bf16 => "bf16".into(),
            RowFormat::Fp8 => "fp8".into(),
            RowFormat::MxFp4 => "mxfp4".into(),
            RowFormat::Fp4 => "fp4".into(),
            RowFormat::Fp8Rope { rope } => format!("fp8_rope{rope}"),
        }
    }

    /// The format of this name.
    pub fn parse(name: &str) -> Option<RowFormat> {
        Some(match name {
            "f32" => RowFormat::F32,
            "bf16" => RowFormat::Bf16,
            "fp8" => RowFormat::Fp8,
            "mxfp4" => RowFormat::MxFp4,
            "fp4" => RowFormat::Fp4,
            _ => RowFormat::Fp8Rope { rope: name.strip_prefix("fp8_rope")?.parse().ok()? },
        })
    }
}

/// Storage formats of weight matrices.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum WeightFormat {
    /// 32-bit floats.
    F32,
    /// bfloat16.
    Bf16,
    /// E4M3 with one UE8M0 scale per square tile: data `[n, k]`, scales `[ceil(n/tile), ceil(k/tile)]`.
    Fp8 {
        /// Side of the tile (32 or 128).
        tile: u16,
    },
    /// E2M1, two codes a byte along `k` (low nibble first), one UE8M0 scale per 32: data `[n, k/2]`, scales `[n, k/32]`.
    Fp4,
}

impl WeightFormat {
    /// Bytes of the data part of an `[n, k]` matrix.
    pub fn data_bytes(self, n: u64, k: u64) -> u64 {
        match self {
            WeightFormat::F32 => n * k * 4,
            WeightFormat::Bf16 => n * k * 2,
            WeightFormat::Fp8 { .. } => n * k,
            WeightFormat::Fp4 => n * k.div_ceil(2),
        }
    }

    /// Bytes of the scale part of an `[n, k]` matrix.
    pub fn scale_bytes(self, n: u64, k: u64) -> u64 {
        match self {
            WeightFormat::F32 | WeightFormat::Bf16 => 0,
            WeightFormat::Fp8 { tile } => n.div_ceil(u64::from(tile)) * k.div_ceil(u64::from(tile)),
            WeightFormat::Fp4 => n * k.div_ceil(32),
        }
    }

    /// Bytes of an `[n, k]` matrix, data then scales.
    pub fn bytes(self, n: u64, k: u64) -> u64 {
        self.data_bytes(n, k) + self.scale_bytes(n, k)
    }

    /// Whether operands of a linear of this format may be quantised (`numerics.linear_inputs`).
    pub fn is_quantised(self) -> bool {
        matches!(self, WeightFormat::Fp8 { .. } | WeightFormat::Fp4)
    }

    /// Name in specs and in the textual IR.
    pub fn name(self) -> String {
        match self {
            WeightFormat::F32 => "f32".into(),
            WeightFormat::Bf16 => "bf16".into(),
            WeightFormat::Fp8 { tile } => format!("fp8_{tile}"),
            WeightFormat::Fp4 => "fp4".into(),
        }
    }

    /// The format of this name.
    pub fn parse(name: &str) -> Option<WeightFormat> {
        Some(match name {
            "f32" => WeightFormat::F32,
            "bf16" => WeightFormat::Bf16,
            "fp4" => WeightFormat::Fp4,
            _ => WeightFormat::Fp8 { tile: name.strip_prefix("fp8_")?.parse().ok().filter(|t| *t > 0)? },
        })
    }
}

impl fmt::Display for RowFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name())
    }
}

impl fmt::Display for WeightFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name())
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DType::F32 => f.write_str("f32"),
            DType::Bf16 => f.write_str("bf16"),
            DType::I32 => f.write_str("i32"),
            DType::Packed(r) => write!(f, "row.{r}"),
            DType::Weight(w) => write!(f, "w.{w}"),
        }
    }
}

impl DType {
    /// The type of this text, as printed.
    pub fn parse(text: &str) -> Option<DType> {
        Some(match text {
            "f32" => DType::F32,
            "bf16" => DType::Bf16,
            "i32" => DType::I32,
            _ => match text.split_once('.')? {
                ("row", r) => DType::Packed(RowFormat::parse(r)?),
                ("w", w) => DType::Weight(WeightFormat::parse(w)?),
                _ => return None,
            },
        })
    }

    /// Bytes of the row (last axis) of `channels` of this type.
    pub fn row_bytes(self, channels: u64) -> u64 {
        match self {
            DType::F32 | DType::I32 => 4 * channels,
            DType::Bf16 => 2 * channels,
            DType::Packed(r) => r.row_bytes(channels),
            DType::Weight(w) => w.bytes(1, channels),
        }
    }
}

impl From<DType> for String {
    fn from(d: DType) -> String {
        d.to_string()
    }
}

impl TryFrom<String> for DType {
    type Error = String;
    fn try_from(s: String) -> Result<DType, String> {
        DType::parse(&s).ok_or_else(|| format!("`{s}` is no dtype"))
    }
}
