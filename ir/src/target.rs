//! Targets: what an architecture can do, and the machines of that architecture.
//!
//! Pure data; `frontend::targets` reads it from `specs/targets/*.yaml`. Passes and code generation ask for
//! [`Capability`]s, never for names.

use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::fmt;

/// An architecture together with one machine of it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Target {
    /// Architecture, such as `sm_90a` or `cpu`.
    pub name: String,
    /// What kind of processor.
    pub kind: TargetKind,
    /// What its kernels may use.
    pub capabilities: BTreeSet<Capability>,
    /// Version of the PTX language, such as 84 for 8.4; 0 where there is no PTX.
    pub ptx_isa: u32,
    /// Name of the processor for LLVM.
    pub llvm_cpu: String,
    /// Features for LLVM, such as `+ptx84`.
    pub llvm_features: String,
    /// Whether code runs on exactly this architecture rather than on it and later ones.
    pub exact_arch: bool,
    /// Oldest driver that takes the code, such as `580.65`; absent on CPUs.
    pub min_driver: Option<String>,
    /// The machine costs are estimated for.
    pub machine: Machine,
}

/// Kind of processor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TargetKind {
    /// An NVIDIA GPU.
    Cuda {
        /// Major part of the compute capability.
        major: u32,
        /// Minor part.
        minor: u32,
    },
    /// The host processor.
    Cpu,
}

/// Something an architecture has an instruction or a mechanism for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Capability {
    /// `mma.sync` on f16 (sm_75).
    Mma,
    /// bf16 arithmetic and `mma.sync` on bf16 (sm_80).
    MmaBf16,
    /// `mma.sync` on E4M3 (sm_89).
    MmaFp8,
    /// Block-scaled `mma.sync` on FP4 (sm_120a).
    MmaFp4,
    /// `cp.async` (sm_80).
    CpAsync,
    /// `wgmma` (sm_90a only).
    Wgmma,
    /// Tensor memory accelerator (sm_90).
    Tma,
    /// Shared-memory barriers with transaction counts (sm_90).
    Mbarrier,
    /// `tcgen05` and tensor memory (sm_100a).
    Tcgen05,
    /// Conversions from and to E4M3 (sm_89).
    Fp8Convert,
    /// Conversions from and to E2M1 (sm_100a, sm_120a).
    Fp4Convert,
    /// Thread-block clusters (sm_90).
    Clusters,
    /// Programmatic dependent launch (sm_90).
    Pdl,
    /// Register reallocation between warpgroups (sm_90a).
    Setmaxnreg,
}

impl Capability {
    /// Every capability.
    pub const ALL: [Capability; 14] = [
        Capability::Mma,
        Capability::MmaBf16,
        Capability::MmaFp8,
        Capability::MmaFp4,
        Capability::CpAsync,
        Capability::Wgmma,
        Capability::Tma,
        Capability::Mbarrier,
        Capability::Tcgen05,
        Capability::Fp8Convert,
        Capability::Fp4Convert,
        Capability::Clusters,
        Capability::Pdl,
        Capability::Setmaxnreg,
    ];

    /// Name in target files.
    pub fn name(self) -> &'static str {
        match self {
            Capability::Mma => "mma",
            Capability::MmaBf16 => "mma_bf16",
            Capability::MmaFp8 => "mma_fp8",
            Capability::MmaFp4 => "mma_fp4",
            Capability::CpAsync => "cp_async",
            Capability::Wgmma => "wgmma",
            Capability::Tma => "tma",
            Capability::Mbarrier => "mbarrier",
            Capability::Tcgen05 => "tcgen05",
            Capability::Fp8Convert => "fp8_convert",
            Capability::Fp4Convert => "fp4_convert",
            Capability::Clusters => "clusters",
            Capability::Pdl => "pdl",
            Capability::Setmaxnreg => "setmaxnreg",
        }
    }

    /// The capability of this name.
    pub fn parse(name: &str) -> Option<Capability> {
        Capability::ALL.into_iter().find(|c| c.name() == name)
    }
}

impl fmt::Display for Capability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// One machine: the numbers that costs and plans need.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Machine {
    /// Name for `--target`, such as `h200`.
    pub name: String,
    /// Bytes of device memory.
    pub memory_bytes: u64,
    /// Bytes per second between memory and processor.
    pub bandwidth_bytes_per_s: f64,
    /// Streaming multiprocessors, or cores of a CPU.
    pub n_sms: u32,
    /// Shared memory one block may ask for; on a CPU, the first-level data cache.
    pub smem_per_block_bytes: u64,
    /// Bytes of the cache shared by all processors.
    pub l2_bytes: u64,
    /// Peak rates.
    pub peak: PeakFlops,
    /// Microseconds that one launch adds to a stream of kernels.
    pub launch_us: f64,
}

/// Dense peak rates in operations per second, a multiply-add counted as two.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct PeakFlops {
    /// bf16 operands, f32 sums; of the f16 units where there is no bf16.
    pub bf16: f64,
    /// E4M3 operands; equal to `bf16` where there are no such units.
    pub fp8: f64,
    /// E2M1 operands; equal to `fp8` where there are no such units.
    pub fp4: f64,
    /// f32 on the ordinary units.
    pub f32: f64,
}

impl Target {
    /// Whether the architecture has `capability`.
    pub fn has(&self, capability: Capability) -> bool {
        self.capabilities.contains(&capability)
    }

    /// Whether it is the host processor.
    pub fn is_cpu(&self) -> bool {
        self.kind == TargetKind::Cpu
    }
}
