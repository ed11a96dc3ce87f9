//! Targets as LLVM knows them, and the way from a checked module to PTX.

use super::NvptxError;
use dsc_ir::target::{Target, TargetKind};
use inkwell::OptimizationLevel;
use inkwell::module::Module;
use inkwell::passes::PassBuilderOptions;
use inkwell::targets::{
    CodeModel, FileType, InitializationConfig, RelocMode, Target as LlvmTarget, TargetMachine, TargetTriple,
};
use inkwell::values::BasicValue;
use std::sync::Once;

/// Processors of LLVM 22 from sm_75 on; `a` and `f` variants as suffixes. An unknown name is only a warning on
/// standard error there.
const PROCESSORS: [&str; 26] = [
    "sm_75", "sm_80", "sm_86", "sm_87", "sm_88", "sm_89", "sm_90", "sm_90a", "sm_100", "sm_100a", "sm_100f", "sm_101",
    "sm_101a", "sm_101f", "sm_103", "sm_103a", "sm_103f", "sm_110", "sm_110a", "sm_110f", "sm_120", "sm_120a",
    "sm_120f", "sm_121", "sm_121a", "sm_121f",
];

/// Versions of PTX that LLVM 22 writes, from sm_75's first on.
const PTX_VERSIONS: [u32; 22] =
    [63, 64, 65, 70, 71, 72, 73, 74, 75, 76, 77, 78, 80, 81, 82, 83, 84, 85, 86, 87, 88, 90];

/// Functions that optimised modules may call: what `instr` declares, and what LLVM's passes make of it that NVPTX
/// selects. Prefixes, since names carry types.
const CALLABLE: [&str; 32] = [
    "llvm.nvvm.read.ptx.sreg.",
    "llvm.nvvm.barrier",
    "llvm.nvvm.bar.",
    "llvm.nvvm.shfl.sync.",
    "llvm.nvvm.mma.",
    "llvm.nvvm.ldmatrix.",
    "llvm.nvvm.f2i.",
    "llvm.fma.f",
    // Several lanes at once, which LLVM splits where the target cannot.
    "llvm.fma.v",
    "llvm.fmuladd.f",
    "llvm.sqrt.f",
    "llvm.fabs.",
    "llvm.copysign.",
    "llvm.minnum.",
    "llvm.maxnum.",
    "llvm.roundeven.",
    "llvm.smin.",
    "llvm.smax.",
    "llvm.umin.",
    "llvm.umax.",
    "llvm.abs.",
    "llvm.fshl.",
    "llvm.fshr.",
    "llvm.ctpop.",
    "llvm.usub.sat.",
    "llvm.uadd.sat.",
    "llvm.is.fpclass.",
    "llvm.assume",
    "llvm.lifetime.",
    "llvm.vector.reduce.",
    "llvm.memset.",
    "llvm.experimental.noalias.scope.decl",
];

fn initialize() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| LlvmTarget::initialize_nvptx(&InitializationConfig::default()));
}

/// Compute capability as one number, 90 for 9.0.
pub(super) fn arch_number(target: &Target) -> Option<u32> {
    match target.kind {
        TargetKind::Cuda { major, minor } => Some(major * 10 + minor),
        TargetKind::Cpu => None,
    }
}

/// LLVM's machine for `target`.
///
/// # Errors
/// It is no GPU, or its processor or PTX version is unknown to LLVM 22.
pub(super) fn machine(target: &Target) -> Result<TargetMachine, NvptxError> {
    let fail = |reason: String| NvptxError::Target { target: target.name.clone(), reason };
    if target.is_cpu() {
        return Err(fail("it is a CPU".into()));
    }
    if !PROCESSORS.contains(&target.llvm_cpu.as_str()) {
        return Err(fail(format!("LLVM 22 has no processor `{}`", target.llvm_cpu)));
    }
    let known = |v: &u32| PTX_VERSIONS.contains(v);
    let version = target.llvm_features.strip_prefix("+ptx").and_then(|v| v.parse().ok()).filter(known);
    if version != Some(target.ptx_isa) {
        return Err(fail(format!(
            "LLVM 22 has no features `{}` for PTX version {}",
            target.llvm_features, target.ptx_isa
        )));
    }
    initialize();
    let triple = TargetTriple::create("nvptx64-nvidia-cuda");
    let llvm = LlvmTarget::from_triple(&triple).map_err(|e| fail(e.to_string()))?;
    llvm.create_target_machine(
        &triple,
        &target.llvm_cpu,
        &target.llvm_features,
        OptimizationLevel::Aggressive,
        RelocMode::Default,
        CodeModel::Default,
    )
    .ok_or_else(|| fail("LLVM makes no machine for it".into()))
}

/// A module's text on both sides of LLVM's code generator.
pub(super) struct Compiled {
    /// PTX.
    pub ptx: String,
    /// LLVM IR after all optimisations, which is what the PTX was made from.
    pub llvm: String,
}

/// Optimises a module and writes it as PTX.
///
/// # Errors
/// The module is malformed, or calls a function that NVPTX may not select.
pub(super) fn compile(module: &Module<'_>, machine: &TargetMachine, symbol: &str) -> Result<Compiled, NvptxError> {
    let fail = |message: String| NvptxError::Llvm { kernel: symbol.into(), message };
    module.verify().map_err(|e| fail(e.to_string()))?;
    module.run_passes("default<O2>", machine, PassBuilderOptions::create()).map_err(|e| fail(e.to_string()))?;
    check_calls(module, symbol)?;
    // Before code generation, which rewrites the module it is given.
    let llvm = module.print_to_string().to_string();
    let text = machine.write_to_memory_buffer(module, FileType::Assembly).map_err(|e| fail(e.to_string()))?;
    let text = std::str::from_utf8(text.as_slice()).map_err(|e| fail(e.to_string()))?;
    Ok(Compiled { ptx: text.trim_end_matches('\0').to_owned(), llvm })
}

/// Refuses calls that could end the process in LLVM's code generator.
fn check_calls(module: &Module<'_>, symbol: &str) -> Result<(), NvptxError> {
    for f in module.get_functions().filter(|f| f.count_basic_blocks() == 0) {
        let name = f.get_name().to_string_lossy();
        let known = CALLABLE.iter().any(|p| name.starts_with(p));
        if !known && f.as_global_value().as_pointer_value().get_first_use().is_some() {
            return Err(NvptxError::Forbidden { kernel: symbol.into(), function: name.into_owned() });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use inkwell::context::Context;

    #[test]
    fn forbidden_calls_are_errors() {
        let cx = Context::create();
        let module = cx.create_module("m");
        let f = module.add_function("llvm.exp.f32", cx.f32_type().fn_type(&[cx.f32_type().into()], false), None);
        let k = module.add_function("k", cx.f32_type().fn_type(&[cx.f32_type().into()], false), None);
        let b = cx.create_builder();
        b.position_at_end(cx.append_basic_block(k, "entry"));
        let x = k.get_nth_param(0).unwrap();
        let y = b.build_call(f, &[x.into()], "y").unwrap().try_as_basic_value().basic().unwrap();
        b.build_return(Some(&y)).unwrap();
        let error = check_calls(&module, "k").unwrap_err();
        assert_eq!(error.to_string(), "kernel `k` calls `llvm.exp.f32`, which has no PTX");
    }
}
