//! Writes LLVM IR: plain arithmetic, memory and loops. PTX instructions that are not plain IR live in `instr`.
//!
//! Building an instruction fails only at a misplaced builder, a defect of dsc. So that emitters read like formulas,
//! a failure is kept, an undefined value stands in, and [`KernelBuilder::fault`] gives the first of them.

use inkwell::basic_block::BasicBlock;
use inkwell::builder::{Builder, BuilderError};
use inkwell::context::Context;
use inkwell::intrinsics::Intrinsic;
use inkwell::module::Module;
use inkwell::types::{BasicType, BasicTypeEnum, FloatType, IntType};
use inkwell::values::{
    BasicMetadataValueEnum, BasicValue, BasicValueEnum, FloatValue, FunctionValue, InstructionValue, IntValue,
    PhiValue, PointerValue,
};
use inkwell::{AddressSpace, FloatPredicate, IntPredicate};
use std::cell::RefCell;

/// Address space of device memory.
pub(super) const GLOBAL: u16 = 1;
/// Address space of shared memory.
pub(super) const SHARED: u16 = 3;

/// Calling convention of kernels (LLVM's `PTX_Kernel`).
const KERNEL_CONVENTION: u32 = 71;

/// The function under construction.
pub(super) struct KernelBuilder<'c> {
    pub(super) cx: &'c Context,
    pub(super) module: Module<'c>,
    pub(super) ir: Builder<'c>,
    func: FunctionValue<'c>,
    fault: RefCell<Option<String>>,
    /// Compute capability as one number.
    pub(super) arch: u32,
}

/// A parameter that is a pointer to device memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PointerParam {
    /// Whether the kernel only reads it, and nothing else writes it meanwhile.
    pub(super) read_only: bool,
}

/// Threads of a block, and the blocks of a multiprocessor that the assembler should leave registers for. Without the
/// latter it has been seen to spill rather than to go beyond 64 registers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct BlockShape {
    pub(super) threads: u32,
    pub(super) resident: u32,
}

/// A loop under construction.
pub(super) struct Loop<'c> {
    header: BasicBlock<'c>,
    exit: BasicBlock<'c>,
    counter: PhiValue<'c>,
    step: IntValue<'c>,
    carried: Vec<PhiValue<'c>>,
    /// The loop variable.
    pub(super) var: IntValue<'c>,
    /// Values carried round, as the body sees them.
    pub(super) phis: Vec<BasicValueEnum<'c>>,
}

/// A conditional piece of code under construction.
pub(super) struct Conditional<'c> {
    after: BasicBlock<'c>,
}

impl<'c> KernelBuilder<'c> {
    /// A kernel with these pointers and, after them, the five dimensions as `i64`.
    pub(super) fn new(cx: &'c Context, symbol: &str, params: &[PointerParam], block: BlockShape, arch: u32) -> Self {
        let module = cx.create_module(symbol);
        let pointer = cx.ptr_type(AddressSpace::from(GLOBAL));
        let mut types: Vec<_> = params.iter().map(|_| pointer.into()).collect();
        types.extend::<[inkwell::types::BasicMetadataTypeEnum; 5]>([cx.i64_type().into(); 5]);
        let func = module.add_function(symbol, cx.void_type().fn_type(&types, false), None);
        func.set_call_conventions(KERNEL_CONVENTION);
        let ir = cx.create_builder();
        ir.position_at_end(cx.append_basic_block(func, "entry"));
        let b = KernelBuilder { cx, module, ir, func, fault: RefCell::new(None), arch };
        b.set_attributes(params, block);
        b
    }

    fn set_attributes(&self, params: &[PointerParam], block: BlockShape) {
        use inkwell::attributes::{Attribute, AttributeLoc};
        // PTX ISA 9.0, 11.4 "Performance-Tuning Directives: .reqntid, .minnctapersm".
        let text = |key: &str, value: &str| self.cx.create_string_attribute(key, value);
        let word = |key: &str, value| self.cx.create_enum_attribute(Attribute::get_named_enum_kind_id(key), value);
        self.func.add_attribute(AttributeLoc::Function, text("nvvm.reqntid", &block.threads.to_string()));
        self.func.add_attribute(AttributeLoc::Function, text("nvvm.minctasm", &block.resident.to_string()));
        self.func.add_attribute(AttributeLoc::Function, word("nounwind", 0));
        for (i, p) in params.iter().enumerate() {
            let at = AttributeLoc::Param(i as u32);
            self.func.add_attribute(at, word("align", 16));
            // Written parameters are not `noalias`: LLVM could move their accesses over a barrier.
            if p.read_only {
                self.func.add_attribute(at, word("noalias", 0));
                self.func.add_attribute(at, word("readonly", 0));
            }
        }
    }

    /// The first failure, if there was one.
    pub(super) fn fault(&self) -> Option<String> {
        self.fault.borrow().clone()
    }

    pub(super) fn fail(&self, message: impl ToString) {
        self.fault.borrow_mut().get_or_insert(message.to_string());
    }

    pub(super) fn keep<T>(&self, made: Result<T, BuilderError>, instead: T) -> T {
        made.unwrap_or_else(|e| {
            self.fail(e);
            instead
        })
    }

    /// Parameter `i`, a pointer.
    pub(super) fn pointer_param(&self, i: u32) -> PointerValue<'c> {
        match self.func.get_nth_param(i) {
            Some(BasicValueEnum::PointerValue(p)) => p,
            _ => {
                self.fail(format!("parameter {i} is no pointer"));
                self.cx.ptr_type(AddressSpace::from(GLOBAL)).get_undef()
            }
        }
    }

    /// Parameter `i`, an integer.
    pub(super) fn int_param(&self, i: u32) -> IntValue<'c> {
        match self.func.get_nth_param(i) {
            Some(BasicValueEnum::IntValue(v)) => v,
            _ => {
                self.fail(format!("parameter {i} is no integer"));
                self.i64_ty().get_undef()
            }
        }
    }

    /// A shared-memory area of the module, or with `bytes` of 0 the one sized at launch.
    pub(super) fn shared_area(&self, name: &str, bytes: u64) -> PointerValue<'c> {
        let len = u32::try_from(bytes).unwrap_or(u32::MAX);
        let ty = self.cx.i8_type().array_type(len);
        let area = self.module.add_global(ty, Some(AddressSpace::from(SHARED)), name);
        area.set_alignment(16);
        if bytes > 0 {
            // Not internal: LLVM reasons about internal globals as if a barrier could not change them.
            area.set_initializer(&ty.get_undef());
        }
        area.as_pointer_value()
    }

    // Types and constants.

    pub(super) fn i1_ty(&self) -> IntType<'c> {
        self.cx.bool_type()
    }
    pub(super) fn i8_ty(&self) -> IntType<'c> {
        self.cx.i8_type()
    }
    pub(super) fn i16_ty(&self) -> IntType<'c> {
        self.cx.i16_type()
    }
    pub(super) fn i32_ty(&self) -> IntType<'c> {
        self.cx.i32_type()
    }
    pub(super) fn i64_ty(&self) -> IntType<'c> {
        self.cx.i64_type()
    }
    pub(super) fn f32_ty(&self) -> FloatType<'c> {
        self.cx.f32_type()
    }
    pub(super) fn f64_ty(&self) -> FloatType<'c> {
        self.cx.f64_type()
    }
    pub(super) fn i32(&self, c: u32) -> IntValue<'c> {
        self.i32_ty().const_int(u64::from(c), false)
    }
    pub(super) fn i64(&self, c: i64) -> IntValue<'c> {
        self.i64_ty().const_int(c as u64, true)
    }
    pub(super) fn u64(&self, c: u64) -> IntValue<'c> {
        self.i64_ty().const_int(c, false)
    }
    pub(super) fn f32(&self, c: f32) -> FloatValue<'c> {
        if c.is_nan() {
            return self.as_float(self.i32(c.to_bits()));
        }
        self.f32_ty().const_float(f64::from(c))
    }

    // Integers of one width.

    pub(super) fn add(&self, a: IntValue<'c>, b: IntValue<'c>) -> IntValue<'c> {
        self.keep(self.ir.build_int_add(a, b, ""), a)
    }
    pub(super) fn sub(&self, a: IntValue<'c>, b: IntValue<'c>) -> IntValue<'c> {
        self.keep(self.ir.build_int_sub(a, b, ""), a)
    }
    pub(super) fn mul(&self, a: IntValue<'c>, b: IntValue<'c>) -> IntValue<'c> {
        self.keep(self.ir.build_int_mul(a, b, ""), a)
    }
    /// Unsigned.
    pub(super) fn div(&self, a: IntValue<'c>, b: IntValue<'c>) -> IntValue<'c> {
        self.keep(self.ir.build_int_unsigned_div(a, b, ""), a)
    }
    /// Unsigned.
    pub(super) fn rem(&self, a: IntValue<'c>, b: IntValue<'c>) -> IntValue<'c> {
        self.keep(self.ir.build_int_unsigned_rem(a, b, ""), a)
    }
    pub(super) fn and(&self, a: IntValue<'c>, b: IntValue<'c>) -> IntValue<'c> {
        self.keep(self.ir.build_and(a, b, ""), a)
    }
    pub(super) fn or(&self, a: IntValue<'c>, b: IntValue<'c>) -> IntValue<'c> {
        self.keep(self.ir.build_or(a, b, ""), a)
    }
    pub(super) fn xor(&self, a: IntValue<'c>, b: IntValue<'c>) -> IntValue<'c> {
        self.keep(self.ir.build_xor(a, b, ""), a)
    }
    pub(super) fn not(&self, a: IntValue<'c>) -> IntValue<'c> {
        self.keep(self.ir.build_not(a, ""), a)
    }
    pub(super) fn shl(&self, a: IntValue<'c>, b: IntValue<'c>) -> IntValue<'c> {
        self.keep(self.ir.build_left_shift(a, b, ""), a)
    }
    /// Logical.
    pub(super) fn shr(&self, a: IntValue<'c>, b: IntValue<'c>) -> IntValue<'c> {
        self.keep(self.ir.build_right_shift(a, b, false, ""), a)
    }
    /// Arithmetic.
    pub(super) fn sar(&self, a: IntValue<'c>, b: IntValue<'c>) -> IntValue<'c> {
        self.keep(self.ir.build_right_shift(a, b, true, ""), a)
    }
    pub(super) fn icmp(&self, p: IntPredicate, a: IntValue<'c>, b: IntValue<'c>) -> IntValue<'c> {
        self.keep(self.ir.build_int_compare(p, a, b, ""), self.i1_ty().get_undef())
    }
    /// Signed.
    pub(super) fn smin(&self, a: IntValue<'c>, b: IntValue<'c>) -> IntValue<'c> {
        self.select(self.icmp(IntPredicate::SLT, a, b), a, b)
    }
    /// Signed.
    pub(super) fn smax(&self, a: IntValue<'c>, b: IntValue<'c>) -> IntValue<'c> {
        self.select(self.icmp(IntPredicate::SGT, a, b), a, b)
    }
    pub(super) fn zext(&self, a: IntValue<'c>, ty: IntType<'c>) -> IntValue<'c> {
        self.keep(self.ir.build_int_z_extend_or_bit_cast(a, ty, ""), ty.get_undef())
    }
    pub(super) fn sext(&self, a: IntValue<'c>, ty: IntType<'c>) -> IntValue<'c> {
        self.keep(self.ir.build_int_s_extend_or_bit_cast(a, ty, ""), ty.get_undef())
    }
    pub(super) fn trunc(&self, a: IntValue<'c>, ty: IntType<'c>) -> IntValue<'c> {
        self.keep(self.ir.build_int_truncate_or_bit_cast(a, ty, ""), ty.get_undef())
    }

    // Floats of one width. No fast-math flag is ever set, so nothing is contracted or reassociated.

    pub(super) fn fadd(&self, a: FloatValue<'c>, b: FloatValue<'c>) -> FloatValue<'c> {
        self.keep(self.ir.build_float_add(a, b, ""), a)
    }
    pub(super) fn fsub(&self, a: FloatValue<'c>, b: FloatValue<'c>) -> FloatValue<'c> {
        self.keep(self.ir.build_float_sub(a, b, ""), a)
    }
    pub(super) fn fmul(&self, a: FloatValue<'c>, b: FloatValue<'c>) -> FloatValue<'c> {
        self.keep(self.ir.build_float_mul(a, b, ""), a)
    }
    pub(super) fn fdiv(&self, a: FloatValue<'c>, b: FloatValue<'c>) -> FloatValue<'c> {
        self.keep(self.ir.build_float_div(a, b, ""), a)
    }
    pub(super) fn fneg(&self, a: FloatValue<'c>) -> FloatValue<'c> {
        self.keep(self.ir.build_float_neg(a, ""), a)
    }
    pub(super) fn fcmp(&self, p: FloatPredicate, a: FloatValue<'c>, b: FloatValue<'c>) -> IntValue<'c> {
        self.keep(self.ir.build_float_compare(p, a, b, ""), self.i1_ty().get_undef())
    }
    /// Signed integer to f32.
    pub(super) fn int_to_float(&self, a: IntValue<'c>, ty: FloatType<'c>) -> FloatValue<'c> {
        self.keep(self.ir.build_signed_int_to_float(a, ty, ""), ty.get_undef())
    }
    pub(super) fn widen(&self, a: FloatValue<'c>) -> FloatValue<'c> {
        self.keep(self.ir.build_float_ext(a, self.f64_ty(), ""), self.f64_ty().get_undef())
    }
    pub(super) fn narrow(&self, a: FloatValue<'c>, ty: FloatType<'c>) -> FloatValue<'c> {
        self.keep(self.ir.build_float_trunc(a, ty, ""), ty.get_undef())
    }
    /// The bits of an f32.
    pub(super) fn as_bits(&self, a: FloatValue<'c>) -> IntValue<'c> {
        let bits = self.keep(self.ir.build_bit_cast(a, self.i32_ty(), ""), self.i32_ty().get_undef().into());
        bits.into_int_value()
    }
    /// The f32 of 32 bits.
    pub(super) fn as_float(&self, a: IntValue<'c>) -> FloatValue<'c> {
        let x = self.keep(self.ir.build_bit_cast(a, self.f32_ty(), ""), self.f32_ty().get_undef().into());
        x.into_float_value()
    }

    /// `if c { a } else { b }` without a branch.
    pub(super) fn select<T>(&self, c: IntValue<'c>, a: T, b: T) -> T
    where
        T: Into<BasicValueEnum<'c>> + TryFrom<BasicValueEnum<'c>> + Copy,
    {
        let (x, y): (BasicValueEnum, BasicValueEnum) = (a.into(), b.into());
        T::try_from(self.keep(self.ir.build_select(c, x, y, ""), x)).unwrap_or(a)
    }

    // Memory.

    /// `base + offset` bytes.
    pub(super) fn offset(&self, base: PointerValue<'c>, offset: IntValue<'c>) -> PointerValue<'c> {
        // SAFETY: inkwell marks `gep` unsafe because LLVM does not check its indices; with the element type i8 and
        // one index it is an addition, and whether the sum is in bounds is up to the loop program or plan.
        #[allow(unsafe_code)]
        let made = unsafe { self.ir.build_gep(self.i8_ty(), base, &[offset], "") };
        self.keep(made, base)
    }

    pub(super) fn load<T: BasicType<'c> + Copy>(&self, ty: T, at: PointerValue<'c>, align: u32) -> BasicValueEnum<'c> {
        let undefined = self.i32_ty().get_undef().into();
        let value = self.keep(self.ir.build_load(ty, at, ""), undefined);
        if let Some(load) = value.as_instruction_value() {
            self.align(load, align);
        }
        value
    }

    pub(super) fn store(&self, at: PointerValue<'c>, value: impl Into<BasicValueEnum<'c>>, align: u32) {
        match self.ir.build_store(at, value.into()) {
            Ok(store) => self.align(store, align),
            Err(e) => self.fail(e),
        }
    }

    fn align(&self, access: InstructionValue<'c>, align: u32) {
        if let Err(e) = access.set_alignment(align) {
            self.fail(e);
        }
    }

    /// Element `i` of a vector.
    pub(super) fn lane(&self, vector: BasicValueEnum<'c>, i: u32) -> BasicValueEnum<'c> {
        match vector {
            BasicValueEnum::VectorValue(v) => self.keep(self.ir.build_extract_element(v, self.i32(i), ""), vector),
            _ => {
                self.fail("a lane of no vector");
                vector
            }
        }
    }

    // Calls.

    /// Calls an intrinsic with these overload types.
    pub(super) fn intrinsic(
        &self,
        name: &str,
        overloads: &[BasicTypeEnum<'c>],
        args: &[BasicMetadataValueEnum<'c>],
    ) -> Option<BasicValueEnum<'c>> {
        let Some(f) = Intrinsic::find(name).and_then(|i| i.get_declaration(&self.module, overloads)) else {
            self.fail(format!("LLVM has no intrinsic `{name}`"));
            return None;
        };
        match self.ir.build_call(f, args, "") {
            Ok(call) => call.try_as_basic_value().basic(),
            Err(e) => {
                self.fail(e);
                None
            }
        }
    }

    pub(super) fn int_result(&self, v: Option<BasicValueEnum<'c>>, ty: IntType<'c>) -> IntValue<'c> {
        match v {
            Some(BasicValueEnum::IntValue(v)) => v,
            _ => {
                self.fail("a call gives no integer");
                ty.get_undef()
            }
        }
    }

    pub(super) fn float_result(&self, v: Option<BasicValueEnum<'c>>, ty: FloatType<'c>) -> FloatValue<'c> {
        match v {
            Some(BasicValueEnum::FloatValue(v)) => v,
            _ => {
                self.fail("a call gives no float");
                ty.get_undef()
            }
        }
    }

    // Control.

    pub(super) fn block(&self, name: &str) -> BasicBlock<'c> {
        self.cx.append_basic_block(self.func, name)
    }

    pub(super) fn at(&self, block: BasicBlock<'c>) {
        self.ir.position_at_end(block);
    }

    pub(super) fn here(&self) -> BasicBlock<'c> {
        self.ir.get_insert_block().unwrap_or_else(|| {
            self.fail("the builder has no block");
            self.block("lost")
        })
    }

    pub(super) fn jump(&self, to: BasicBlock<'c>) {
        if let Err(e) = self.ir.build_unconditional_branch(to) {
            self.fail(e);
        }
    }

    pub(super) fn branch(&self, cond: IntValue<'c>, then: BasicBlock<'c>, otherwise: BasicBlock<'c>) {
        if let Err(e) = self.ir.build_conditional_branch(cond, then, otherwise) {
            self.fail(e);
        }
    }

    pub(super) fn ret(&self) {
        if let Err(e) = self.ir.build_return(None) {
            self.fail(e);
        }
    }

    pub(super) fn phi(&self, ty: BasicTypeEnum<'c>) -> Option<PhiValue<'c>> {
        match self.ir.build_phi(ty, "") {
            Ok(phi) => Some(phi),
            Err(e) => {
                self.fail(e);
                None
            }
        }
    }

    /// Starts code that runs where `cond` holds; goes on inside it.
    pub(super) fn begin_if(&self, cond: IntValue<'c>) -> Conditional<'c> {
        let (then, after) = (self.block("then"), self.block("after"));
        self.branch(cond, then, after);
        self.at(then);
        Conditional { after }
    }

    /// Ends it; goes on after it.
    pub(super) fn end_if(&self, conditional: Conditional<'c>) {
        self.jump(conditional.after);
        self.at(conditional.after);
    }

    /// Starts a loop over `lo, lo + step .. hi` (signed) that carries values; goes on in its body.
    pub(super) fn begin_loop(
        &self,
        lo: IntValue<'c>,
        hi: IntValue<'c>,
        step: IntValue<'c>,
        init: &[BasicValueEnum<'c>],
    ) -> Option<Loop<'c>> {
        let (from, header, body, exit) = (self.here(), self.block("head"), self.block("body"), self.block("exit"));
        self.jump(header);
        self.at(header);
        let counter = self.phi(lo.get_type().into())?;
        counter.add_incoming(&[(&lo, from)]);
        let mut carried = Vec::with_capacity(init.len());
        for v in init {
            let phi = self.phi(v.get_type())?;
            phi.add_incoming(&[(v, from)]);
            carried.push(phi);
        }
        let var = counter.as_basic_value().into_int_value();
        self.branch(self.icmp(IntPredicate::SLT, var, hi), body, exit);
        self.at(body);
        let phis = carried.iter().map(|p| p.as_basic_value()).collect();
        Some(Loop { header, exit, counter, step, carried, var, phis })
    }

    /// Ends a loop with the next values of what it carries; goes on after it, with the last ones.
    pub(super) fn end_loop(&self, l: &Loop<'c>, next: &[BasicValueEnum<'c>]) -> Vec<BasicValueEnum<'c>> {
        let advanced = self.add(l.var, l.step);
        let latch = self.here();
        self.jump(l.header);
        l.counter.add_incoming(&[(&advanced, latch)]);
        for (phi, v) in l.carried.iter().zip(next) {
            phi.add_incoming(&[(v, latch)]);
        }
        self.at(l.exit);
        l.phis.clone()
    }
}
