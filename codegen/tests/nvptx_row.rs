//! Row kernels: plans, PTX and what the assembler says.
#![cfg(feature = "nvptx")]

mod nvptx_common;

use dsc_codegen::loops::{Builder, Param, Place};
use dsc_codegen::nvptx::NvptxError;
use dsc_codegen::nvptx::row::{RowPlan, emit_row};
use dsc_ir::expr::Expr;
use dsc_ir::target::TargetKind;
use nvptx_common::{ARCHES, assemble, programs, target};

#[test]
fn every_program_assembles_for_every_architecture() {
    for func in programs::all() {
        for (arch, ..) in ARCHES {
            let target = target(arch);
            let plan = RowPlan::new(&func, Expr::tokens(), &target).unwrap();
            let kernel = emit_row(&func, &target, &plan).unwrap();
            assert_eq!(kernel.grid[0], Expr::tokens());
            if assemble(&kernel, arch).is_none() {
                return;
            }
        }
    }
}

#[test]
fn nothing_is_contracted() {
    for func in programs::all() {
        let target = target("sm_90a");
        let plan = RowPlan::new(&func, Expr::tokens(), &target).unwrap();
        let ptx = emit_row(&func, &target, &plan).unwrap().ptx;
        for line in ptx.lines() {
            let op = line.split_whitespace().find(|w| !w.starts_with('@')).unwrap_or("");
            // Without a rounding modifier the assembler may contract.
            assert!(!["add.f32", "sub.f32", "mul.f32", "add.f64", "mul.f64"].contains(&op), "{line}");
            assert!(!op.contains("approx") && !op.contains(".ftz"), "{line}");
        }
    }
}

#[test]
fn plans() {
    let h200 = target("sm_90a");
    let plan = |f| RowPlan::new(&f, Expr::tokens(), &h200).unwrap();
    let small = plan(programs::softmax(24));
    assert_eq!((small.threads, small.smem_bytes), (32, 0));
    let norm = plan(programs::rms_norm(7168));
    assert_eq!((norm.threads, norm.partials_at, norm.smem_bytes), (512, 28672, 28672 + 16 * 8));
    assert_eq!((norm.smem_static_bytes(), norm.smem_dynamic_bytes()), (norm.smem_bytes, 0));
    let wide = plan(programs::rms_norm(16384));
    assert_eq!((wide.smem_static_bytes(), wide.smem_dynamic_bytes()), (0, 65536 + 128));
    let error = RowPlan::new(&programs::rms_norm(16384), Expr::tokens(), &target("sm_75")).unwrap_err();
    assert_eq!(
        error.to_string(),
        "kernel `dsc_test_rms_norm` needs 65664 bytes of shared memory, the target has 65536"
    );
}

#[test]
fn large_scratch_is_sized_at_launch() {
    let target = target("sm_90a");
    let func = programs::rms_norm(16384);
    let plan = RowPlan::new(&func, Expr::tokens(), &target).unwrap();
    let kernel = emit_row(&func, &target, &plan).unwrap();
    assert!(kernel.ptx.contains(".extern .shared .align 16 .b8 dsc_test_rms_norm_smem[]"), "{}", kernel.ptx);
    assemble(&kernel, "sm_90a");
}

#[test]
fn refusals() {
    let h200 = target("sm_90a");
    let dense = {
        let param = |name: &str| Param { name: name.into(), written: false };
        let mut b = Builder::new("dense", vec![param("y"), param("x"), param("w")], 1);
        let n = b.int(8);
        b.dense((Place::Param(0), n), n, (Place::Param(1), n), n, (Place::Param(2), n), [n, n, n]);
        b.finish()
    };
    let plan = RowPlan::new(&dense, Expr::tokens(), &h200).unwrap();
    let error = emit_row(&dense, &h200, &plan).unwrap_err();
    assert_eq!(error.to_string(), "kernel `dense` cannot be emitted as PTX: dense products in a row kernel");

    let mut blocked = programs::softmax(24);
    blocked.row_block = 8;
    assert!(matches!(RowPlan::new(&blocked, Expr::tokens(), &h200), Err(NvptxError::Unsupported { .. })));

    let mut named = programs::softmax(24);
    named.name = "a-b".into();
    let plan = RowPlan::new(&named, Expr::tokens(), &h200).unwrap();
    let error = emit_row(&named, &h200, &plan).unwrap_err();
    assert_eq!(error.to_string(), "kernel `a-b` cannot be emitted as PTX: its name is no PTX identifier");
}

#[test]
fn unknown_targets_are_refused_before_llvm_sees_them() {
    let func = programs::softmax(24);
    let emit = |change: &dyn Fn(&mut dsc_ir::target::Target)| {
        let mut target = target("sm_90a");
        change(&mut target);
        let plan = RowPlan::new(&func, Expr::tokens(), &target).unwrap();
        emit_row(&func, &target, &plan).unwrap_err().to_string()
    };
    assert!(emit(&|t| t.llvm_cpu = "sm_99".into()).contains("no processor `sm_99`"));
    assert!(emit(&|t| t.llvm_features = "+ptx91".into()).contains("no features `+ptx91`"));
    assert!(emit(&|t| t.ptx_isa = 80).contains("for PTX version 80"));
    assert!(emit(&|t| t.kind = TargetKind::Cpu).contains("it is a CPU"));
}

#[test]
fn emission_is_repeatable_and_parallel() {
    use rayon::prelude::*;
    let target = target("sm_90a");
    let emit = |func: &dsc_codegen::loops::Func| {
        let plan = RowPlan::new(func, Expr::tokens(), &target).unwrap();
        emit_row(func, &target, &plan).unwrap()
    };
    let funcs = programs::all();
    let once: Vec<_> = funcs.iter().map(emit).collect();
    let again: Vec<_> = funcs.par_iter().map(emit).collect();
    assert_eq!(once, again);
}

#[test]
fn golden_ptx_of_a_small_norm() {
    let target = target("sm_80");
    let func = programs::rms_norm(136);
    let plan = RowPlan::new(&func, Expr::tokens(), &target).unwrap();
    insta::assert_snapshot!(emit_row(&func, &target, &plan).unwrap().ptx);
}
