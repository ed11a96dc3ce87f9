//! What the tests of the PTX backend share: targets, small loop programs and the assembler.
#![allow(dead_code)] // each test binary uses a part
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stderr)] // helpers of tests

pub mod emulator;
pub mod eval;
pub mod kernels;
pub mod programs;
pub mod scalar;

use dsc_codegen::nvptx::GpuKernel;
use dsc_codegen::ptxas::{self, Assembled, PtxasError};
use dsc_ir::target::{Capability, Machine, PeakFlops, Target, TargetKind};

/// Architectures that every kernel must assemble for: name, PTX version.
pub const ARCHES: [(&str, u32, u32, u32); 7] = [
    ("sm_75", 7, 5, 63),
    ("sm_80", 8, 0, 70),
    ("sm_86", 8, 6, 71),
    ("sm_89", 8, 9, 81),
    ("sm_90a", 9, 0, 84),
    ("sm_100a", 10, 0, 88),
    ("sm_120a", 12, 0, 88),
];

/// A target of this architecture, with plain numbers for the machine.
pub fn target(name: &str) -> Target {
    let (_, major, minor, ptx_isa) = ARCHES.into_iter().find(|a| a.0 == name).expect("a known architecture");
    let smem_kib = if (major, minor) == (7, 5) {
        64
    } else if name == "sm_90a" {
        227
    } else {
        99
    };
    let capabilities = match major {
        7 => vec![Capability::Mma],
        _ => vec![Capability::Mma, Capability::MmaBf16, Capability::CpAsync],
    };
    Target {
        name: name.into(),
        kind: TargetKind::Cuda { major, minor },
        capabilities: capabilities.into_iter().collect(),
        ptx_isa,
        llvm_cpu: name.into(),
        llvm_features: format!("+ptx{ptx_isa}"),
        exact_arch: name.ends_with('a'),
        min_driver: None,
        machine: Machine {
            name: name.into(),
            memory_bytes: 1 << 34,
            bandwidth_bytes_per_s: 1e12,
            n_sms: 100,
            smem_per_block_bytes: smem_kib * 1024,
            l2_bytes: 1 << 25,
            peak: PeakFlops { bf16: 1e14, fp8: 1e14, fp4: 1e14, f32: 1e13 },
            launch_us: 3.0,
        },
    }
}

/// Assembles a kernel and checks that it does not spill; says so where there is no assembler.
pub fn assemble(kernel: &GpuKernel, arch: &str) -> Option<Assembled> {
    match ptxas::assemble(&kernel.ptx, arch) {
        Ok(a) => {
            assert_eq!(a.spill_bytes, 0, "{} spills on {arch}", kernel.symbol);
            assert_eq!(a.smem_bytes, kernel.smem_static_bytes, "{} on {arch}", kernel.symbol);
            assert!(u64::from(a.registers) * u64::from(kernel.threads) <= 65536, "{} on {arch}", kernel.symbol);
            Some(a)
        }
        Err(PtxasError::Missing { .. }) => {
            eprintln!("SKIPPED: no ptxas, {} was not assembled for {arch}", kernel.symbol);
            None
        }
        Err(e) => panic!("{} for {arch}: {e}", kernel.symbol),
    }
}
