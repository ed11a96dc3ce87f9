//! Random weights made on the GPU, byte for byte what [`crate::weights`] makes on the host.

use super::buffer::Buffer;
use super::device::{CudaError, Device, Kernel, LaunchShape};
use crate::weights::random::{Fill, Kind, Part};

const PTX: &str = include_str!("fill.ptx");
const THREADS: u32 = 256;

/// The kernel that makes random contents.
pub(super) struct Filler(Kernel);

impl Filler {
    pub fn new(device: &Device) -> Result<Filler, CudaError> {
        Ok(Filler(device.load(PTX.as_bytes(), "dsc_fill")?))
    }

    /// Starts making contents; `buffer` is zeroed where no part of the fill lies.
    pub fn start(&self, device: &Device, fill: &Fill, buffer: &Buffer) -> Result<(), CudaError> {
        for part in fill.parts.iter().filter(|p| p.bytes > 0 && p.rows > 0) {
            self.part(device, fill.state(), part, buffer)?;
        }
        Ok(())
    }

    fn part(&self, device: &Device, state: u64, part: &Part, buffer: &Buffer) -> Result<(), CudaError> {
        let per_run = part.draws_of_run();
        let total = per_run.saturating_mul(part.rows);
        let end = part.offset + (part.rows - 1) * part.stride + part.bytes;
        let blocks = u32::try_from(total.div_ceil(THREADS.into())).ok().filter(|b| *b < 1 << 31);
        let Some(blocks) = blocks.filter(|_| end <= buffer.len() as u64) else {
            let message = format!("{end} bytes of random contents do not fit {}", buffer.len());
            return Err(CudaError::Driver { doing: "make random weights".into(), message });
        };
        let (kind, a, b) = code(part.kind);
        // The state of a stream grows by the same step for every number.
        let state = state.wrapping_add(part.draw.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let base = device.address(buffer) + part.offset;
        let width = part.kind.bytes();
        let words = vec![base, state, per_run, part.draws, part.stride, part.bytes, total, kind, a, b, width];
        let shape = LaunchShape { grid: [blocks, 1, 1], threads: THREADS, smem_bytes: 0 };
        device.start(&self.0, shape, words)
    }
}

/// Number and two parameters of a kind, as the kernel takes them.
fn code(kind: Kind) -> (u64, u64, u64) {
    let bits = |x: f32| u64::from(x.to_bits());
    match kind {
        Kind::F32(rule) => (0, bits(rule.mean), bits(rule.amplitude)),
        Kind::Bf16(rule) => (1, bits(rule.mean), bits(rule.amplitude)),
        Kind::Bits => (2, 0, 0),
        Kind::E4m3 => (3, 0, 0),
        Kind::Ue8m0 { middle } => (4, u64::from(middle) - 1, 0),
        Kind::SmallScales => (5, 0, 0),
    }
}
