//! CPU kernels: loop programs as CLIF text, for the calling convention of `dsc_ir::cpu_abi`.
//!
//! The text is portable between hosts; the runtime compiles it for the machine it runs on.

mod inst;
mod stmt;

use crate::loops::{Func, Place, Var};
use cranelift_codegen::ir::{AbiParam, Block, ExtFuncData, ExternalName, FuncRef, Function, Signature, UserFuncName};
use cranelift_codegen::ir::{InstBuilder, MemFlagsData, Type, Value, condcodes::IntCC, types};
use cranelift_codegen::isa::CallConv;
use cranelift_codegen::settings;
use cranelift_frontend::{FunctionBuilder, FunctionBuilderContext};
use dsc_ir::cpu_abi::Lent;
use dsc_ir::expr::Sym;
use std::collections::{BTreeMap, HashMap};

/// A loop program that cannot become CLIF: a defect of dsc, never of the user's input.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("CPU kernel `{func}`: {message}")]
pub struct CpuError {
    /// Symbol.
    pub func: String,
    /// What is wrong.
    pub message: String,
}

/// The CLIF text of a loop program: one function that runs it over row blocks.
///
/// # Errors
/// A program that does not verify, as loops or as CLIF.
pub fn emit(func: &Func) -> Result<String, CpuError> {
    let fail = |message: String| CpuError { func: func.name.clone(), message };
    crate::loops::verify(func).map_err(|e| fail(e.message))?;
    let mut clif = Function::with_name_signature(UserFuncName::testcase(&func.name), signature(&[types::I64; 5], None));
    let mut context = FunctionBuilderContext::new();
    let mut emitter = Emitter::new(func, FunctionBuilder::new(&mut clif, &mut context));
    emitter.kernel()?;
    emitter.f.seal_all_blocks();
    // `finalize` would only clear the context, and asks for a target that the text does not have.
    drop(emitter);
    let flags = settings::Flags::new(settings::builder());
    cranelift_codegen::verify_function(&clif, &flags).map_err(|e| fail(e.to_string()))?;
    Ok(clif.display().to_string())
}

fn signature(params: &[Type], result: Option<Type>) -> Signature {
    let mut s = Signature::new(CallConv::SystemV);
    s.params = params.iter().map(|t| AbiParam::new(*t)).collect();
    s.returns = result.into_iter().map(AbiParam::new).collect();
    s
}

/// State of writing one function.
struct Emitter<'a, 'f> {
    func: &'a Func,
    f: FunctionBuilder<'f>,
    values: Vec<Option<Value>>,
    /// Sums of a value and a constant, for the offsets of accesses.
    sums: HashMap<Var, (Var, i32)>,
    constants: HashMap<Var, i64>,
    params: Vec<Value>,
    scratch: Vec<Value>,
    dims: [Option<Value>; 5],
    row_begin: Option<Value>,
    row_count: Option<Value>,
    lent: BTreeMap<&'static str, FuncRef>,
}

impl<'a, 'f> Emitter<'a, 'f> {
    fn new(func: &'a Func, f: FunctionBuilder<'f>) -> Emitter<'a, 'f> {
        Emitter {
            func,
            f,
            values: vec![None; func.types.len()],
            sums: HashMap::new(),
            constants: HashMap::new(),
            params: Vec::new(),
            scratch: Vec::new(),
            dims: [None; 5],
            row_begin: None,
            row_count: None,
            lent: BTreeMap::new(),
        }
    }

    fn fail<T>(&self, message: impl Into<String>) -> Result<T, CpuError> {
        Err(CpuError { func: self.func.name.clone(), message: message.into() })
    }

    /// The loop over row blocks around the body.
    fn kernel(&mut self) -> Result<(), CpuError> {
        let entry = self.f.create_block();
        self.f.append_block_params_for_function_params(entry);
        self.f.switch_to_block(entry);
        let &[params, dims, begin, end, scratch] = self.f.block_params(entry) else {
            return self.fail("the signature has five parameters");
        };
        self.addresses(params, dims, scratch);
        let (header, body, exit) = (self.f.create_block(), self.f.create_block(), self.f.create_block());
        let row = self.f.append_block_param(header, types::I64);
        self.f.ins().jump(header, &[begin.into()]);
        self.f.switch_to_block(header);
        let more = self.f.ins().icmp(IntCC::SignedLessThan, row, end);
        self.f.ins().brif(more, body, &[], exit, &[]);
        self.f.switch_to_block(body);
        let rest = self.f.ins().isub(end, row);
        let most = self.int(i64::try_from(self.func.row_block).unwrap_or(i64::MAX));
        let count = self.f.ins().smin(rest, most);
        (self.row_begin, self.row_count) = (Some(row), Some(count));
        let func = self.func;
        self.block(&func.body)?;
        let next = self.f.ins().iadd(row, count);
        self.f.ins().jump(header, &[next.into()]);
        self.f.switch_to_block(exit);
        self.f.ins().return_(&[]);
        Ok(())
    }

    /// Loads the addresses of parameters and the dimensions; lays out scratch.
    fn addresses(&mut self, params: Value, dims: Value, scratch: Value) {
        for i in 0..self.func.params.len() {
            let address = self.f.ins().load(types::I64, MemFlagsData::trusted(), params, 8 * i as i32);
            self.params.push(address);
        }
        for i in 0..self.dims.len() {
            self.dims[i] = Some(self.f.ins().load(types::I64, MemFlagsData::trusted(), dims, 8 * i as i32));
        }
        let mut offset = 0i64;
        for area in &self.func.scratch {
            let address = if offset == 0 { scratch } else { self.f.ins().iadd_imm_s(scratch, offset) };
            self.scratch.push(address);
            offset += area.bytes as i64;
        }
    }

    fn int(&mut self, c: i64) -> Value {
        self.f.ins().iconst(types::I64, c)
    }

    fn dim(&self, sym: Sym) -> Option<Value> {
        let i = match sym {
            Sym::Tokens => 0,
            Sym::Seqs => 1,
            Sym::Context => 2,
            Sym::OutRows => 3,
            Sym::TailRows => 4,
        };
        self.dims[i]
    }

    fn base(&self, place: Place) -> Option<Value> {
        match place {
            Place::Param(i) => self.params.get(i as usize).copied(),
            Place::Scratch(i) => self.scratch.get(i as usize).copied(),
        }
    }

    fn value(&self, v: Var) -> Result<Value, CpuError> {
        match self.values.get(v.0 as usize).copied().flatten() {
            Some(value) => Ok(value),
            None => self.fail(format!("{v} has no value")),
        }
    }

    fn set(&mut self, v: Var, value: Value) {
        if let Some(slot) = self.values.get_mut(v.0 as usize) {
            *slot = Some(value);
        }
    }

    /// A function lent by the runtime, declared on first use.
    fn lent(&mut self, lent: &Lent, params: &[Type], result: Option<Type>) -> FuncRef {
        if let Some(f) = self.lent.get(lent.name) {
            return *f;
        }
        let signature = self.f.import_signature(signature(params, result));
        let name = ExternalName::testcase(lent.name);
        let f = self.f.import_function(ExtFuncData { name, signature, colocated: false, patchable: false });
        self.lent.insert(lent.name, f);
        f
    }

    /// Blocks of a loop: its header, body and exit.
    fn loop_blocks(&mut self) -> [Block; 3] {
        [self.f.create_block(), self.f.create_block(), self.f.create_block()]
    }
}
