//! Every kernel of every shipped spec has GPU code, and what NVIDIA's assembler says about the flagship's.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a failing helper is a failing test
#![cfg(feature = "nvptx")]
#![allow(clippy::print_stderr)] // a skipped check says so

use dsc_codegen::gpu::{RowsHint, emit_for};
use dsc_codegen::nvptx::GpuKernel;
use dsc_codegen::ptxas::{self, PtxasError};
use dsc_ir::kernel::Kernel;
use dsc_ir::op::Op;
use dsc_ir::schedule::Phase;
use dsc_ir::target::Target;
use dsc_passes::pipeline::Select;
use dsc_runtime::bundle::Bundle;
use dsc_runtime::executor;
use dsc_tests::{build, model, root, target};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Kernels told apart by their work, each with where it is from.
type Kernels = BTreeMap<String, (String, Kernel, RowsHint)>;

/// All kernels of a spec that are one rank's work, for this target.
fn add_kernels(kernels: &mut Kernels, spec: &str, on: &Target) {
    let m = model(spec, &[]);
    for phase in [Phase::Prefill, Phase::Decode] {
        for k in m.compile(phase, on, &Select::All, None).unwrap().schedule.kernels {
            let between_ranks = |op: &Op| matches!(op, Op::AllReduce(sum) if sum.ranks > 1);
            if k.graph.nodes.iter().any(|n| between_ranks(&n.op)) {
                continue;
            }
            let hint = if phase == Phase::Decode { RowsHint::Few } else { RowsHint::Many };
            let roles: Vec<_> = k.params.iter().map(|p| (p.role.name(), p.value)).collect();
            let work = format!("{}{roles:?}", dsc_ir::text::print(&k.graph.anonymous()));
            kernels.entry(work).or_insert_with(|| (format!("{spec} {}", k.name), k, hint));
        }
    }
}

/// Names of all specs, variants after those they vary.
fn specs() -> Vec<String> {
    let names = |folder: &str| {
        let entries = std::fs::read_dir(root().join("specs").join(folder)).unwrap();
        let names = entries.map(|e| e.unwrap().file_name().into_string().unwrap()).filter(|n| n.ends_with(".yaml"));
        let mut names: Vec<String> = names.map(|n| format!("{folder}{n}")).collect();
        names.sort();
        names
    };
    [names(""), names("variants/")].concat()
}

/// Runs `f` for all items on all cores; results in the items' order.
fn in_parallel<T: Sync, R: Send>(items: &[T], f: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let n_threads = std::thread::available_parallelism().map_or(1, usize::from);
    let next = AtomicUsize::new(0);
    let work = || {
        let mut made = Vec::new();
        while let Some((i, item)) = Some(next.fetch_add(1, Ordering::Relaxed)).and_then(|i| Some((i, items.get(i)?))) {
            made.push((i, f(item)));
        }
        made
    };
    let mut all: Vec<(usize, R)> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..n_threads).map(|_| scope.spawn(work)).collect();
        threads.into_iter().flat_map(|t| t.join().unwrap()).collect()
    });
    all.sort_by_key(|(i, _)| *i);
    all.into_iter().map(|(_, r)| r).collect()
}

/// Emits all kernels; gives those that were, and says which were not.
fn emit_all(kernels: &Kernels, on: &Target) -> (Vec<(String, GpuKernel)>, Vec<String>) {
    let list: Vec<_> = kernels.values().collect();
    let made = in_parallel(&list, |(name, k, hint)| {
        (name.clone(), emit_for(k, "dsc_kernel", on, *hint).map_err(|e| format!("{name}: {e}")))
    });
    let (mut emitted, mut missing) = (Vec::new(), Vec::new());
    for (name, made) in made {
        match made {
            Ok(gpu) => emitted.push((name, gpu)),
            Err(reason) => missing.push(reason),
        }
    }
    (emitted, missing)
}

#[test]
fn every_kernel_of_every_spec_has_ptx() {
    let h200 = target("sm_90a");
    let mut kernels = Kernels::new();
    for spec in specs() {
        add_kernels(&mut kernels, &spec, &h200);
    }
    let (emitted, missing) = emit_all(&kernels, &h200);
    eprintln!("{} distinct kernels", emitted.len() + missing.len());
    assert!(missing.is_empty(), "{}", missing.join("\n"));
}

#[test]
fn the_flagship_assembles() {
    for arch in ["sm_75", "sm_80", "sm_90a"] {
        let on = target(arch);
        let mut kernels = Kernels::new();
        for spec in ["deepseek-v4.1-flash.yaml", "tiny-v41.yaml", "tiny-v4.yaml"] {
            add_kernels(&mut kernels, spec, &on);
        }
        let (emitted, missing) = emit_all(&kernels, &on);
        assert!(missing.is_empty(), "{arch}: {}", missing.join("\n"));
        let made = in_parallel(&emitted, |(name, gpu)| (name.clone(), ptxas::assemble(&gpu.ptx, arch)));
        for ((name, made), (_, gpu)) in made.into_iter().zip(&emitted) {
            match made {
                Ok(a) => {
                    assert!(a.spill_bytes == 0 || may_spill(&name), "{name} spills {} bytes on {arch}", a.spill_bytes);
                    assert_eq!(a.smem_bytes, gpu.smem_static_bytes, "{name} on {arch}");
                    assert!(u64::from(a.registers) * u64::from(gpu.threads) <= 65536, "{name} on {arch}");
                }
                Err(PtxasError::Missing { .. }) => {
                    eprintln!("SKIPPED: no ptxas, nothing was assembled for {arch}");
                    return;
                }
                Err(e) => panic!("{name} for {arch}: {e}"),
            }
        }
    }
}

/// One lane hashes a row's n-grams for all memories, and its factors and primes come near 128 registers.
fn may_spill(name: &str) -> bool {
    name.ends_with(" engram_hash_engram_gather")
}

#[test]
fn sums_between_ranks_are_no_kernels_and_gpus_refuse_them() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tp4");
    build(&model("variants/tp4-16-heads.yaml", &[]), &Select::All, &path);
    let bundle = Bundle::load(&path).unwrap();
    let sums: Vec<_> = bundle.manifest.kernels.iter().filter(|k| k.ops.contains(&"all_reduce".to_string())).collect();
    assert!(!sums.is_empty() && sums.iter().all(|k| k.cpu.is_none() && k.gpu.is_empty()));
    let error = executor::one_rank(&bundle.manifest).unwrap_err().to_string();
    assert!(error.contains("needs 4 ranks"), "{error}");
}
