//! Sums between ranks. The CPU runs all ranks of a bundle in turn, launch by launch, so that a sum finds every rank's
//! part complete.

use crate::bundle::Bundle;
use crate::executor::DeviceError;
use dsc_ir::dtype::DType;
use dsc_ir::op::Op;
use half::bf16;

/// Ranks that each sum between ranks adds up, by kernel; none for kernels that compute.
pub(super) fn groups(bundle: &Bundle) -> Result<Vec<Option<usize>>, DeviceError> {
    let one = |entry: &dsc_ir::manifest::KernelEntry| {
        if !entry.ops.iter().any(|op| op == "all_reduce") {
            return Ok(None);
        }
        let fail = |reason: String| DeviceError::Kernel { kernel: entry.name.clone(), reason };
        let (graph, _) = crate::check::graph_of(bundle, entry).map_err(fail)?;
        match &graph.nodes[..] {
            [node] => match &node.op {
                Op::AllReduce(sum) if sum.ranks > 1 => Ok(usize::try_from(sum.ranks).ok()),
                _ => Ok(None),
            },
            _ => Err(fail("a sum between ranks is a kernel of its own".into())),
        }
    };
    bundle.manifest.kernels.iter().map(one).collect()
}

/// Adds up the parts of a group's ranks, in ascending order, rounding once.
pub(super) fn sum(parts: &[&[u8]], dtype: DType) -> Vec<u8> {
    let floats = |part: &[u8]| -> Vec<f32> {
        match dtype {
            DType::Bf16 => part.as_chunks::<2>().0.iter().map(|b| bf16::from_le_bytes(*b).to_f32()).collect(),
            _ => part.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect(),
        }
    };
    let mut total: Vec<f64> = Vec::new();
    for part in parts {
        let part = floats(part);
        total.resize(part.len(), 0.0);
        total.iter_mut().zip(part).for_each(|(t, x)| *t += f64::from(x));
    }
    let total = total.into_iter().map(|t| t as f32);
    match dtype {
        DType::Bf16 => total.flat_map(|t| bf16::from_f32(t).to_le_bytes()).collect(),
        _ => total.flat_map(f32::to_le_bytes).collect(),
    }
}
