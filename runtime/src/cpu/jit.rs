//! CLIF text to machine code: parsed, checked against the calling convention, compiled for the host.
//!
//! Fused multiply-adds and vector widths follow the host, but CLIF says exactly which operations are fused, so
//! results do not depend on it.

use super::lent;
use crate::bundle::Bundle;
use cranelift_codegen::control::ControlPlane;
use cranelift_codegen::ir::{AbiParam, ExternalName, Function, Signature, Type, UserExternalName, UserFuncName, types};
use cranelift_codegen::isa::OwnedTargetIsa;
use cranelift_codegen::settings::{self, Configurable};
use cranelift_codegen::{Context, isa::CallConv};
use cranelift_jit::{JITBuilder, JITModule};
use cranelift_module::{FuncId, Linkage, Module, ModuleReloc};
use dsc_ir::cpu_abi::Lent;
use dsc_ir::manifest::CpuCode;
use rayon::prelude::*;
use std::collections::BTreeMap;
use std::sync::Mutex;

/// A compiled kernel.
pub(super) type Entry = extern "C" fn(*const *mut u8, *const i64, i64, i64, *mut u8);

/// Why code cannot be compiled.
#[derive(Debug)]
pub(super) struct JitError {
    /// Kernel's symbol; empty when it is not about one.
    pub symbol: String,
    /// What is wrong.
    pub reason: String,
}

impl JitError {
    fn new(symbol: &str, reason: impl ToString) -> JitError {
        JitError { symbol: symbol.into(), reason: reason.to_string() }
    }
}

/// Compiled kernels and the memory that holds their code.
pub(super) struct Code {
    // Behind a lock only so that threads may share the device; it is touched again when it is dropped.
    module: Mutex<Option<JITModule>>,
    entries: BTreeMap<String, Entry>,
}

impl Code {
    pub fn entry(&self, symbol: &str) -> Option<Entry> {
        self.entries.get(symbol).copied()
    }
}

impl Drop for Code {
    fn drop(&mut self) {
        let module = self.module.get_mut().unwrap_or_else(|e| e.into_inner());
        if let Some(module) = module.take() {
            // SAFETY: entries are called through the device that owns this code, and it is being dropped.
            #[allow(unsafe_code)] // freeing code memory
            unsafe {
                module.free_memory();
            }
        }
    }
}

fn host_isa() -> Result<OwnedTargetIsa, JitError> {
    let mut flags = settings::builder();
    for (name, value) in
        [("opt_level", "speed"), ("is_pic", "false"), ("use_colocated_libcalls", "false"), ("enable_verifier", "true")]
    {
        flags.set(name, value).map_err(|e| JitError::new("", e))?;
    }
    let builder = cranelift_native::builder().map_err(|e| JitError::new("", e))?;
    builder.finish(settings::Flags::new(flags)).map_err(|e| JitError::new("", e))
}

/// Compiles these kernels of a bundle.
pub(super) fn compile(bundle: &Bundle, codes: &[&CpuCode]) -> Result<Code, JitError> {
    let isa = host_isa()?;
    let mut functions = select(bundle, codes)?;
    let mut builder = JITBuilder::with_isa(isa.clone(), cranelift_module::default_libcall_names());
    builder.symbols(lent::all().map(|a| (a.lent.name, a.code)));
    builder.symbols(lent::library());
    let mut module = JITModule::new(builder);
    let convention = isa.default_call_conv();
    let lent = declare_lent(&mut module, convention)?;
    let mut ids = Vec::with_capacity(functions.len());
    for (symbol, function) in &mut functions {
        adapt(function, convention, &lent).map_err(|e| JitError::new(symbol, e))?;
        let id = module.declare_function(symbol, Linkage::Local, &function.signature);
        ids.push(id.map_err(|e| JitError::new(symbol, e))?);
    }
    define(&mut module, &isa, functions, &ids).map(|entries| Code { module: Mutex::new(Some(module)), entries })
}

/// The functions of the kernels, by symbol; a file is parsed once.
fn select(bundle: &Bundle, codes: &[&CpuCode]) -> Result<Vec<(String, Function)>, JitError> {
    let mut wanted: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for code in codes {
        let symbols = wanted.entry(&code.file).or_default();
        if !symbols.contains(&code.symbol.as_str()) {
            symbols.push(&code.symbol);
        }
    }
    let files: Vec<_> = wanted.into_iter().collect();
    let parsed: Vec<Vec<_>> =
        files.par_iter().map(|(file, symbols)| parse(bundle, file, symbols)).collect::<Result<_, _>>()?;
    let all: Vec<(String, Function)> = parsed.into_iter().flatten().collect();
    let mut names: Vec<&str> = all.iter().map(|(s, _)| s.as_str()).collect();
    names.sort_unstable();
    match names.windows(2).find(|w| w[0] == w[1]) {
        Some(w) => Err(JitError::new(w[0], "its symbol is used by two files")),
        None => Ok(all),
    }
}

fn parse(bundle: &Bundle, file: &str, symbols: &[&str]) -> Result<Vec<(String, Function)>, JitError> {
    let first = symbols.first().copied().unwrap_or("");
    let text = bundle.text(file).map_err(|e| JitError::new(first, e))?;
    let functions =
        cranelift_reader::parse_functions(text).map_err(|e| JitError::new(first, format!("`{file}`: {e}")))?;
    let mut by_name: BTreeMap<String, Function> = functions.into_iter().map(|f| (f.name.to_string(), f)).collect();
    let take = |symbol: &&str| match by_name.remove(&format!("%{symbol}")) {
        Some(f) => Ok((symbol.to_string(), f)),
        None => Err(JitError::new(symbol, format!("`{file}` has no function of its symbol"))),
    };
    symbols.iter().map(take).collect()
}

/// `(f32, i64) -> f32` as a signature.
fn signature(text: &str, convention: CallConv) -> Option<Signature> {
    let (params, returns) = text.split_once(')')?;
    let types = |list: &str| -> Option<Vec<AbiParam>> {
        let names = list.split(',').map(str::trim).filter(|t| !t.is_empty());
        names.map(|t| Some(AbiParam::new(named_type(t)?))).collect()
    };
    let mut signature = Signature::new(convention);
    signature.params = types(params.trim().strip_prefix('(')?)?;
    signature.returns = types(returns.trim().trim_start_matches("->"))?;
    Some(signature)
}

fn named_type(name: &str) -> Option<Type> {
    [types::F32, types::F64, types::I32, types::I64].into_iter().find(|t| t.to_string() == name)
}

type Declared = BTreeMap<&'static str, (FuncId, Signature)>;

fn declare_lent(module: &mut JITModule, convention: CallConv) -> Result<Declared, JitError> {
    let declare = |Lent { name, signature: text }: Lent| {
        let sig = signature(text, convention).ok_or_else(|| JitError::new("", format!("`{name}` has no signature")))?;
        let id = module.declare_function(name, Linkage::Import, &sig).map_err(|e| JitError::new("", e))?;
        Ok((name, (id, sig)))
    };
    lent::all().map(|a| a.lent).into_iter().map(declare).collect()
}

fn same_types(a: &Signature, b: &Signature) -> bool {
    let of = |list: &[AbiParam]| list.iter().map(|p| p.value_type).collect::<Vec<_>>();
    of(&a.params) == of(&b.params) && of(&a.returns) == of(&b.returns)
}

/// Checks a kernel against the calling convention and ties its calls to the lent functions.
fn adapt(f: &mut Function, convention: CallConv, lent: &Declared) -> Result<(), String> {
    let mut own = Signature::new(convention);
    own.params = vec![AbiParam::new(types::I64); 5];
    if !same_types(&f.signature, &own) {
        return Err("it does not take five `i64` and return nothing".into());
    }
    if !f.global_values.is_empty() {
        return Err("it names global values".into());
    }
    f.signature.call_conv = convention;
    f.name = UserFuncName::default();
    for s in f.dfg.signatures.values_mut() {
        s.call_conv = convention;
    }
    let calls: Vec<_> = f.dfg.ext_funcs.iter().map(|(r, data)| (r, data.name.clone(), data.signature)).collect();
    for (reference, name, signature) in calls {
        let text = name.display(Some(&f.params)).to_string();
        let found = match &name {
            ExternalName::TestCase(_) => lent.get(text.trim_start_matches('%')),
            _ => None,
        };
        let Some((id, expected)) = found else {
            return Err(format!("it calls `{text}`, which is not lent to kernels"));
        };
        if !same_types(&f.dfg.signatures[signature], expected) {
            return Err(format!("it calls `{text}` with another signature"));
        }
        let user = f.declare_imported_user_function(UserExternalName { namespace: 0, index: id.as_u32() });
        let data = &mut f.dfg.ext_funcs[reference];
        data.name = ExternalName::user(user);
        data.colocated = false;
    }
    Ok(())
}

/// Compiles on all threads, then places the code.
fn define(
    module: &mut JITModule,
    isa: &OwnedTargetIsa,
    functions: Vec<(String, Function)>,
    ids: &[FuncId],
) -> Result<BTreeMap<String, Entry>, JitError> {
    let compiled: Vec<(String, Context)> = functions
        .into_par_iter()
        .map(|(symbol, function)| {
            let mut cx = Context::for_function(function);
            cx.compile(&**isa, &mut ControlPlane::default())
                .map_err(|e| JitError::new(&symbol, format!("{:?}", e.inner)))?;
            Ok((symbol, cx))
        })
        .collect::<Result<_, JitError>>()?;
    for ((symbol, cx), id) in compiled.iter().zip(ids) {
        let code = cx.compiled_code().ok_or_else(|| JitError::new(symbol, "it gave no code"))?;
        let relocs: Vec<_> =
            code.buffer.relocs().iter().map(|r| ModuleReloc::from_mach_reloc(r, &cx.func, *id)).collect();
        let alignment = u64::from(code.buffer.alignment.max(isa.function_alignment().preferred));
        let placed = module.define_function_bytes(*id, alignment, code.code_buffer(), &relocs);
        placed.map_err(|e| JitError::new(symbol, e))?;
    }
    module.finalize_definitions().map_err(|e| JitError::new("", e))?;
    let entry = |((symbol, _), id): ((String, Context), &FuncId)| {
        let address = module.get_finalized_function(*id);
        // SAFETY: the function was checked to take five `i64` in the host's C convention and return nothing.
        #[allow(unsafe_code)] // calling compiled code
        let entry = unsafe { std::mem::transmute::<*const u8, Entry>(address) };
        (symbol, entry)
    };
    Ok(compiled.into_iter().zip(ids).map(entry).collect())
}
