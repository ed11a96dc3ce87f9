//! GPU kernels of the tiny models without a GPU: their conformance cases, run by the PTX emulator.
#![cfg(all(feature = "nvptx", feature = "cuda"))]
#![allow(clippy::unwrap_used, clippy::panic)]

#[path = "../../codegen/tests/nvptx_common/emulator.rs"]
mod emulator;
#[path = "../../codegen/tests/nvptx_common/scalar.rs"]
mod scalar;

use dsc_cli::gpu_cases::{self, GpuCasesArgs};
use dsc_cli::output::Output;
use dsc_ir::diag::Style;
use dsc_runtime::cuda::case::{Stored, read_all};
use dsc_runtime::cuda::compare::compare;
use dsc_tests::root;
use emulator::{Launch, Order, Program};
use std::path::Path;

fn make(spec: &str, folder: &Path) {
    let args = GpuCasesArgs {
        specs: vec![root().join("specs").join(spec)],
        output: folder.to_path_buf(),
        target: "sm_90a".into(),
        kernel: None,
        seed: 1,
        max_mib: 64,
        max_mflops: 2000,
        ptx: true,
        overrides: Default::default(),
    };
    let (mut out, mut notes) = (Vec::new(), Vec::new());
    let plain = Style { colour: false };
    let mut output = Output { out: &mut out, notes: &mut notes, out_style: plain, notes_style: plain };
    gpu_cases::run(&args, &mut output).unwrap_or_else(|e| panic!("{}", e.render(plain)));
}

/// What does not hold after a run on the emulator.
fn failures(stored: &Stored) -> Vec<String> {
    let case = &stored.case;
    let ptx = String::from_utf8(stored.file(&case.code, None).unwrap()).unwrap();
    let before = stored.inputs().unwrap();
    let mut buffers = before.clone();
    let mut launch = Launch {
        grid: case.grid,
        threads: case.threads,
        smem_dynamic: case.smem_dynamic_bytes.into(),
        dims: case.dims,
        buffers: &mut buffers,
        order: Order::Descending,
    };
    Program::parse(&ptx).run(&mut launch);
    let mut failures = Vec::new();
    for (p, (before, after)) in case.params.iter().zip(before.iter().zip(&buffers)) {
        let Some(expected) = &p.expected else {
            if before != after {
                failures.push(format!("`{}` was changed", p.name));
            }
            continue;
        };
        let want = stored.file(&expected.file, Some(p.bytes)).unwrap();
        let c = compare(before, &want, after, expected.element, expected.rule);
        if !c.holds {
            failures.push(format!("`{}`: {} of {} outside, first {:?}", p.name, c.outside, c.elements, c.first));
        }
    }
    failures
}

fn check(spec: &str) {
    let dir = tempfile::tempdir().unwrap();
    make(spec, dir.path());
    let mut failed = Vec::new();
    for stored in read_all(dir.path()).unwrap() {
        let case = &stored.case;
        // The step in the middle of sequences shows more than the one from their beginning.
        if !case.name.ends_with(".middle") {
            continue;
        }
        failed.extend(failures(&stored).iter().map(|failure| format!("{}: {failure}", case.name)));
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

#[test]
fn kernels_of_the_tiny_v41_model() {
    check("tiny-v41.yaml");
}

#[test]
fn kernels_of_the_tiny_v4_model() {
    check("tiny-v4.yaml");
}
