//! What a gemm kernel computes.

use super::super::NvptxError;
use dsc_ir::dtype::{DType, RowFormat, WeightFormat};
use dsc_ir::expr::Expr;
use dsc_ir::graph::{ValueId, weight_format};
use dsc_ir::kernel::Kernel;
use dsc_ir::op::Op;

/// Storage of the left operand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RowOperand {
    /// 32-bit floats.
    F32,
    /// bfloat16.
    Bf16,
    /// Packed `fp8` rows of `channels`; `k` is one or several of them side by side.
    Fp8 {
        /// Channels of a packed row.
        channels: u64,
    },
}

/// How many rows a launch usually has. It moves work between blocks and never changes a result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RowsHint {
    /// A decode step's.
    Few,
    /// A prefill step's.
    Many,
}

/// One weight and what it gives.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GemmOutput {
    /// Rows of the weight: columns of the result.
    pub n: u64,
    /// Storage of the weight.
    pub weight: WeightFormat,
    /// Parameter that holds it.
    pub w_param: u32,
    /// Parameter of the result.
    pub y_param: u32,
    /// Whether the result is bf16 rather than f32.
    pub bf16: bool,
}

/// What to compute.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GemmDesc {
    /// Entry point.
    pub symbol: String,
    /// Rows of `x`.
    pub rows: Expr,
    /// How many that usually is.
    pub hint: RowsHint,
    /// Columns of `x`, all groups together.
    pub k: u64,
    /// Blocks on the diagonal: 1, or the groups of a grouped linear.
    pub groups: u64,
    /// Storage of `x`.
    pub x: RowOperand,
    /// Parameter that holds it.
    pub x_param: u32,
    /// Weights and results.
    pub outputs: Vec<GemmOutput>,
    /// Parameters of the kernel.
    pub n_params: u32,
}

impl GemmDesc {
    /// The gemm that a kernel is.
    ///
    /// # Errors
    /// [`NvptxError::Unsupported`] with everything about the kernel that this emitter cannot do.
    pub fn of_kernel(kernel: &Kernel, symbol: &str, hint: RowsHint) -> Result<GemmDesc, NvptxError> {
        let mut lacking = Vec::new();
        let graph = &kernel.graph;
        for node in graph.nodes.iter().filter(|n| groups_of(&n.op).is_none()) {
            lacking.push(format!("`{}` in a gemm kernel", node.op.name()));
        }
        let linears: Vec<_> = graph.nodes.iter().filter_map(|n| Some((n, groups_of(&n.op)?))).collect();
        let &[(node, groups)] = linears.as_slice() else {
            lacking.push(format!("{} linears in one kernel (it does one)", linears.len()));
            return Err(NvptxError::Unsupported { kernel: symbol.into(), lacking });
        };
        let x_value = node.inputs.first().copied().unwrap_or(ValueId(0));
        let x_param = param(kernel, x_value, &mut lacking);
        let k = graph.ty(x_value).row_elements();
        let mut outputs = Vec::new();
        for (w, y) in node.inputs.iter().skip(1).zip(&node.outputs) {
            let (n, k_weight) = graph.ty(*w).matrix();
            let output = GemmOutput {
                n,
                weight: weight_format(graph.ty(*w)).unwrap_or(WeightFormat::F32),
                w_param: param(kernel, *w, &mut lacking),
                y_param: param(kernel, *y, &mut lacking),
                bf16: graph.ty(*y).dtype == DType::Bf16,
            };
            if k_weight * groups != k {
                lacking.push(format!("a weight of {k_weight} columns for {k} channels in {groups} groups"));
            }
            lacking.extend(output_gaps(&output, groups, graph.ty(*y).dtype, graph.ty(*w).dtype));
            outputs.push(output);
        }
        let x = row_operand(graph.ty(x_value).dtype, graph.ty(x_value).shape.last(), k);
        lacking.extend(x.clone().err());
        let (Ok(x), true) = (x, lacking.is_empty()) else {
            return Err(NvptxError::Unsupported { kernel: symbol.into(), lacking });
        };
        Ok(GemmDesc {
            symbol: symbol.into(),
            rows: kernel.rows.clone(),
            hint,
            k,
            groups,
            x,
            x_param,
            outputs,
            n_params: kernel.params.len() as u32,
        })
    }

    /// Columns of `x` that one result sums over.
    pub fn k_per_group(&self) -> u64 {
        self.k / self.groups.max(1)
    }
}

/// Index of the parameter that holds a value.
fn param(kernel: &Kernel, v: ValueId, lacking: &mut Vec<String>) -> u32 {
    let at = kernel.param_index(v).and_then(|i| u32::try_from(i).ok());
    if at.is_none() {
        lacking.push(format!("`{}` is not in memory", kernel.graph.value(v).name));
    }
    at.unwrap_or(0)
}

fn groups_of(op: &Op) -> Option<u64> {
    match op {
        Op::Linear(_) => Some(1),
        Op::GroupLinear(op) => Some(op.groups.max(1)),
        _ => None,
    }
}

fn output_gaps(output: &GemmOutput, groups: u64, y: DType, w: DType) -> Vec<String> {
    let mut gaps = Vec::new();
    if !matches!(y, DType::F32 | DType::Bf16) {
        gaps.push(format!("results of type `{y}`"));
    }
    if matches!(w, DType::I32 | DType::Packed(_)) {
        gaps.push(format!("weights of type `{w}`"));
    }
    if let WeightFormat::Fp8 { tile } = output.weight
        && !tile.is_multiple_of(4)
    {
        gaps.push(format!("weights with scales per {tile} columns"));
    }
    if output.n == 0 || !output.n.is_multiple_of(groups) {
        gaps.push(format!("{} results in {groups} groups", output.n));
    }
    gaps
}

fn row_operand(dtype: DType, last_axis: Option<&Expr>, k: u64) -> Result<RowOperand, String> {
    match dtype {
        DType::F32 => Ok(RowOperand::F32),
        DType::Bf16 => Ok(RowOperand::Bf16),
        DType::Packed(RowFormat::Fp8) => match last_axis.and_then(Expr::as_const) {
            Some(channels) if channels > 0 && k.is_multiple_of(channels) => Ok(RowOperand::Fp8 { channels }),
            _ => Err(format!("packed rows that {k} channels are no multiple of")),
        },
        DType::I32 | DType::Packed(_) | DType::Weight(_) => Err(format!("rows of type `{dtype}`")),
    }
}
