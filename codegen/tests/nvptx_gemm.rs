//! Gemm kernels: descriptions, plans, PTX and what the assembler says.
#![cfg(feature = "nvptx")]
#![allow(clippy::unwrap_used)] // helpers of tests

mod nvptx_common;

use dsc_codegen::nvptx::gemm::{GemmDesc, GemmPlan, RowOperand, RowsHint, emit_gemm};
use dsc_ir::dtype::{DType, RowFormat, WeightFormat};
use dsc_ir::expr::Expr;
use nvptx_common::kernels::{add_after, group_linear, linear};
use nvptx_common::{ARCHES, assemble, target};

const FP8_ROWS: DType = DType::Packed(RowFormat::Fp8);
const FP8: DType = DType::Weight(WeightFormat::Fp8 { tile: 128 });
const FP4: DType = DType::Weight(WeightFormat::Fp4);

fn desc(kernel: &dsc_ir::kernel::Kernel, hint: RowsHint) -> GemmDesc {
    GemmDesc::of_kernel(kernel, "dsc_test_gemm", hint).unwrap()
}

#[test]
fn descriptions() {
    let kernel = linear(&[7, 64], FP8_ROWS, &[(FP8, 96, DType::Bf16), (DType::F32, 5, DType::F32)]);
    let desc = desc(&kernel, RowsHint::Few);
    assert_eq!((desc.k, desc.groups, desc.x), (448, 1, RowOperand::Fp8 { channels: 64 }));
    assert_eq!((desc.x_param, desc.n_params), (0, 5));
    let (first, second) = (&desc.outputs[0], &desc.outputs[1]);
    assert_eq!((first.n, first.w_param, first.y_param, first.bf16), (96, 1, 3, true));
    assert_eq!(first.weight, WeightFormat::Fp8 { tile: 128 });
    assert_eq!((second.n, second.w_param, second.y_param, second.bf16), (5, 2, 4, false));
}

#[test]
fn everything_it_lacks_is_listed() {
    let error = GemmDesc::of_kernel(&add_after(64, 32), "dsc_test_gemm", RowsHint::Many).unwrap_err();
    assert_eq!(
        error.to_string(),
        "kernel `dsc_test_gemm` cannot be emitted as PTX: `add` in a gemm kernel; `y0` is not in memory"
    );
    let kernel = linear(&[64], DType::Packed(RowFormat::MxFp4), &[(FP4, 32, FP8_ROWS)]);
    let error = GemmDesc::of_kernel(&kernel, "dsc_test_gemm", RowsHint::Many).unwrap_err();
    assert_eq!(
        error.to_string(),
        "kernel `dsc_test_gemm` cannot be emitted as PTX: results of type `row.fp8`; rows of type `row.mxfp4`"
    );
}

#[test]
fn plans() {
    let target = target("sm_75");
    let kernel = group_linear(4, 512, 200, DType::Bf16, FP8, DType::F32);
    let many = desc(&kernel, RowsHint::Many);
    let plan = GemmPlan::new(&many, &target);
    assert_eq!((plan.threads(), plan.smem_bytes(), plan.n_tiles(&many)), (256, 16 * (132 + 68) * 4, 4));
    let few = desc(&kernel, RowsHint::Few);
    let plan = GemmPlan::new(&few, &target);
    assert_eq!((plan.threads(), plan.smem_bytes(), plan.n_tiles(&few)), (128, 64 * (12 + 36) * 4, 8));
}

#[test]
fn every_format_assembles_for_every_architecture() {
    let kernels = [
        linear(&[512], FP8_ROWS, &[(FP8, 192, DType::Bf16), (DType::Bf16, 40, DType::F32)]),
        linear(&[512], DType::Bf16, &[(FP4, 192, DType::Bf16)]),
        linear(&[512], DType::F32, &[(DType::F32, 192, DType::F32)]),
        linear(&[37], DType::F32, &[(FP4, 5, DType::F32)]),
        linear(&[3, 33], DType::Bf16, &[(FP8, 7, DType::Bf16)]),
        group_linear(8, 4096, 1024, FP8_ROWS, FP8, DType::Bf16),
    ];
    for kernel in &kernels {
        for hint in [RowsHint::Few, RowsHint::Many] {
            let desc = desc(kernel, hint);
            for (arch, ..) in ARCHES {
                let target = target(arch);
                let gpu = emit_gemm(&desc, &GemmPlan::new(&desc, &target), &target).unwrap();
                assert!(matches!(gpu.grid[0], Expr::CeilDiv(..)));
                if assemble(&gpu, arch).is_none() {
                    return;
                }
            }
        }
    }
}
