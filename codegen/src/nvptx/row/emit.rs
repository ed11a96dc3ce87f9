//! From a loop program to LLVM IR.
//!
//! Barriers. Parallel loops end with one. Uniform code is run by all threads but stores by thread 0 alone; barriers
//! around that are put where they are needed: before a uniform load, a parallel loop or the like that could see a
//! pending store, and before a store that a slower thread's pending load could see too early.

use super::super::builder::{KernelBuilder, PointerParam};
use super::super::{NvptxError, math};
use super::plan::RowPlan;
use super::reduce::{Partial, Reducer};
use crate::loops::{Acc, Carry, Cmp, FOp, FUn, Func, IOp, Inst, Mem, Place, Stmt, Ty, Var};
use inkwell::context::Context;
use inkwell::module::Module;
use inkwell::values::{BasicValueEnum, FloatValue, IntValue, PointerValue};
use inkwell::{FloatPredicate, IntPredicate};
use std::collections::BTreeSet;

pub(super) fn emit<'c>(cx: &'c Context, func: &Func, plan: &RowPlan, arch: u32) -> Result<Module<'c>, NvptxError> {
    let written = written_params(func);
    let params: Vec<_> =
        (0..func.params.len() as u32).map(|i| PointerParam { read_only: !written.contains(&i) }).collect();
    let b = KernelBuilder::new(cx, &func.name, &params, plan.shape(), arch);
    let smem = b.shared_area(&format!("{}_smem", func.name), plan.smem_static_bytes());
    let thread = b.thread();
    let mut emitter = Emitter {
        func,
        plan,
        written,
        thread,
        thread_long: b.zext(thread, b.i64_ty()),
        reducer: Reducer { base: smem, thread },
        values: vec![None; func.types.len()],
        pending: Pending::default(),
        b,
    };
    emitter.block(&func.body, false)?;
    emitter.b.ret();
    match emitter.b.fault() {
        Some(message) => Err(NvptxError::Llvm { kernel: func.name.clone(), message }),
        None => Ok(emitter.b.module),
    }
}

/// Accesses of uniform code since the last barrier that others could conflict with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Pending {
    loads: bool,
    stores: bool,
}

impl Pending {
    fn or(self, other: Pending) -> Pending {
        Pending { loads: self.loads || other.loads, stores: self.stores || other.stores }
    }
}

struct Emitter<'a, 'c> {
    func: &'a Func,
    plan: &'a RowPlan,
    b: KernelBuilder<'c>,
    /// Parameters that the program stores to.
    written: BTreeSet<u32>,
    thread: IntValue<'c>,
    thread_long: IntValue<'c>,
    reducer: Reducer<'c>,
    values: Vec<Option<BasicValueEnum<'c>>>,
    pending: Pending,
}

/// Parameters that a program stores to, whatever their declaration says.
fn written_params(func: &Func) -> BTreeSet<u32> {
    fn scan(stmts: &[Stmt], out: &mut BTreeSet<u32>) {
        for s in stmts {
            match s {
                Stmt::Store { place: Place::Param(i), .. } | Stmt::Dense { y: (Place::Param(i), _), .. } => {
                    out.insert(*i);
                }
                Stmt::Let(..) | Stmt::Store { .. } | Stmt::Dense { .. } => {}
                Stmt::For { body, .. }
                | Stmt::Lanes { body, .. }
                | Stmt::Reduce { body, .. }
                | Stmt::If { body, .. } => scan(body, out),
            }
        }
    }
    let declared = func.params.iter().enumerate().filter(|(_, p)| p.written).map(|(i, _)| i as u32);
    let mut out: BTreeSet<u32> = declared.collect();
    scan(&func.body, &mut out);
    out
}

impl<'c> Emitter<'_, 'c> {
    fn defect<T>(&self, message: impl Into<String>) -> Result<T, NvptxError> {
        Err(NvptxError::Llvm { kernel: self.func.name.clone(), message: message.into() })
    }

    fn get(&self, v: Var) -> Result<BasicValueEnum<'c>, NvptxError> {
        match self.values.get(v.0 as usize).copied().flatten() {
            Some(value) => Ok(value),
            None => self.defect(format!("{v} has no value")),
        }
    }

    fn int(&self, v: Var) -> Result<IntValue<'c>, NvptxError> {
        match self.get(v)? {
            BasicValueEnum::IntValue(i) => Ok(i),
            _ => self.defect(format!("{v} is no integer")),
        }
    }

    fn float(&self, v: Var) -> Result<FloatValue<'c>, NvptxError> {
        match self.get(v)? {
            BasicValueEnum::FloatValue(x) => Ok(x),
            _ => self.defect(format!("{v} is no float")),
        }
    }

    fn set(&mut self, v: Var, value: impl Into<BasicValueEnum<'c>>) {
        if let Some(slot) = self.values.get_mut(v.0 as usize) {
            *slot = Some(value.into());
        }
    }

    fn barrier(&mut self) {
        self.b.barrier();
        self.pending = Pending::default();
    }

    fn block(&mut self, stmts: &[Stmt], parallel: bool) -> Result<(), NvptxError> {
        stmts.iter().try_for_each(|s| self.stmt(s, parallel))
    }

    fn stmt(&mut self, s: &Stmt, parallel: bool) -> Result<(), NvptxError> {
        match s {
            Stmt::Let(v, inst) => {
                let value = self.inst(inst, parallel)?;
                self.set(*v, value);
                Ok(())
            }
            Stmt::Store { place, at, mem, value } => self.store(*place, *at, *mem, *value, parallel),
            Stmt::For { var, lo, hi, carries, body } => self.sequential(*var, (*lo, *hi), carries, body, parallel),
            Stmt::Lanes { var, n, body } => self.lanes(*var, *n, body),
            Stmt::Reduce { var, n, body, accs } => self.reduce(*var, *n, body, accs),
            Stmt::If { cond, body } => {
                let cond = self.int(*cond)?;
                let before = self.pending;
                let open = self.b.begin_if(cond);
                self.block(body, parallel)?;
                self.b.end_if(open);
                self.pending = self.pending.or(before);
                Ok(())
            }
            Stmt::Dense { .. } => Err(NvptxError::Unsupported {
                kernel: self.func.name.clone(),
                lacking: vec!["dense products in a row kernel".into()],
            }),
        }
    }

    fn sequential(
        &mut self,
        var: Var,
        (lo, hi): (Var, Var),
        carries: &[Carry],
        body: &[Stmt],
        parallel: bool,
    ) -> Result<(), NvptxError> {
        let init = carries.iter().map(|c| self.get(c.init)).collect::<Result<Vec<_>, _>>()?;
        let (lo, hi) = (self.int(lo)?, self.int(hi)?);
        let before = self.pending;
        if !parallel {
            // What an iteration leaves pending, the next one finds.
            self.pending = before.or(self.effects(body));
        }
        let Some(l) = self.b.begin_loop(lo, hi, self.b.i64(1), &init) else {
            return self.defect("a loop was not built");
        };
        self.set(var, l.var);
        for (c, phi) in carries.iter().zip(&l.phis) {
            self.set(c.phi, *phi);
        }
        self.block(body, parallel)?;
        let next = carries.iter().map(|c| self.get(c.next)).collect::<Result<Vec<_>, _>>()?;
        let outs = self.b.end_loop(&l, &next);
        for (c, out) in carries.iter().zip(outs) {
            self.set(c.out, out);
        }
        self.pending = self.pending.or(before);
        Ok(())
    }

    /// Uniform accesses that `stmts` may leave pending.
    fn effects(&self, stmts: &[Stmt]) -> Pending {
        stmts.iter().fold(Pending::default(), |acc, s| {
            acc.or(match s {
                Stmt::Let(_, Inst::Load { place, .. }) => Pending { loads: self.conflicts(*place), stores: false },
                Stmt::Store { .. } => Pending { loads: false, stores: true },
                Stmt::For { body, .. } | Stmt::If { body, .. } => self.effects(body),
                Stmt::Let(..) | Stmt::Lanes { .. } | Stmt::Reduce { .. } | Stmt::Dense { .. } => Pending::default(),
            })
        })
    }

    /// Whether the block itself may store to a place.
    fn conflicts(&self, place: Place) -> bool {
        match place {
            Place::Param(i) => self.written.contains(&i),
            Place::Scratch(_) => true,
        }
    }

    fn lanes(&mut self, var: Var, n: Var, body: &[Stmt]) -> Result<(), NvptxError> {
        if self.pending != Pending::default() {
            self.barrier();
        }
        let n = self.int(n)?;
        let step = self.b.i64(i64::from(self.plan.threads));
        let Some(l) = self.b.begin_loop(self.thread_long, n, step, &[]) else {
            return self.defect("a loop was not built");
        };
        self.set(var, l.var);
        self.block(body, true)?;
        self.b.end_loop(&l, &[]);
        self.barrier();
        Ok(())
    }

    fn reduce(&mut self, var: Var, n: Var, body: &[Stmt], accs: &[Acc]) -> Result<(), NvptxError> {
        if self.pending.stores {
            self.barrier();
        }
        let n = self.int(n)?;
        let step = self.b.i64(i64::from(self.plan.threads));
        let init: Vec<_> = accs.iter().flat_map(|a| Partial::neutral(&self.b, a).values()).collect();
        let Some(l) = self.b.begin_loop(self.thread_long, n, step, &init) else {
            return self.defect("a loop was not built");
        };
        self.set(var, l.var);
        self.block(body, true)?;
        let mut next = Vec::with_capacity(init.len());
        for (acc, so_far) in accs.iter().zip(self.partials(accs, &l.phis)?) {
            let value = match so_far {
                Partial::Int(_) => Partial::Int(self.int(acc.value)?),
                Partial::Float(_) => Partial::Float(self.float(acc.value)?),
                Partial::Best(..) => Partial::Best(self.float(acc.value)?, l.var),
            };
            next.extend(so_far.combine(&self.b, acc, value).values());
        }
        let outs = self.b.end_loop(&l, &next);
        let partials = self.partials(accs, &outs)?;
        let totals = self.reducer.reduce(&self.b, self.plan, accs, partials);
        for (acc, total) in accs.iter().zip(totals) {
            match total {
                Partial::Int(i) => self.set(acc.out, i),
                Partial::Float(x) => self.set(acc.out, x),
                Partial::Best(x, i) => {
                    self.set(acc.out, x);
                    if let Some(out) = acc.out_index {
                        self.set(out, i);
                    }
                }
            }
        }
        if self.plan.n_warps() == 1 {
            self.b.barrier();
        }
        self.pending = Pending::default();
        Ok(())
    }

    fn partials(&self, accs: &[Acc], values: &[BasicValueEnum<'c>]) -> Result<Vec<Partial<'c>>, NvptxError> {
        let mut values = values.iter().copied();
        let partials: Option<Vec<_>> = accs.iter().map(|a| Partial::take(a, &mut values)).collect();
        partials.map_or_else(|| self.defect("a reduction lost a value"), Ok)
    }

    fn address(&self, place: Place, at: Var) -> Result<PointerValue<'c>, NvptxError> {
        let at = self.int(at)?;
        Ok(match place {
            Place::Param(i) => self.b.offset(self.b.pointer_param(i), at),
            Place::Scratch(i) => {
                let area = self.plan.scratch_at.get(i as usize).copied().unwrap_or(0);
                self.b.offset(self.b.offset(self.reducer.base, self.b.u64(area)), at)
            }
        })
    }

    fn store(&mut self, place: Place, at: Var, mem: Mem, value: Var, parallel: bool) -> Result<(), NvptxError> {
        if parallel {
            return self.store_element(place, at, mem, value);
        }
        if self.pending.loads {
            self.barrier();
        }
        let first = self.b.icmp(IntPredicate::EQ, self.thread, self.b.i32(0));
        let open = self.b.begin_if(first);
        self.store_element(place, at, mem, value)?;
        self.b.end_if(open);
        self.pending.stores = true;
        Ok(())
    }

    fn store_element(&self, place: Place, at: Var, mem: Mem, value: Var) -> Result<(), NvptxError> {
        let (b, to) = (&self.b, self.address(place, at)?);
        match mem {
            Mem::F32 => b.store(to, self.float(value)?, 4),
            Mem::Bf16 => b.store(to, b.to_bf16(self.float(value)?), 2),
            Mem::I32 => b.store(to, b.trunc(self.int(value)?, b.i32_ty()), 4),
            Mem::U8 => b.store(to, b.trunc(self.int(value)?, b.i8_ty()), 1),
        }
        Ok(())
    }

    fn load(&mut self, place: Place, at: Var, mem: Mem, parallel: bool) -> Result<BasicValueEnum<'c>, NvptxError> {
        if !parallel && self.conflicts(place) {
            if self.pending.stores {
                self.barrier();
            }
            self.pending.loads = true;
        }
        let (b, from) = (&self.b, self.address(place, at)?);
        Ok(match mem {
            Mem::F32 => b.load(b.f32_ty(), from, 4),
            Mem::Bf16 => b.bf16_to_float(b.load(b.i16_ty(), from, 2).into_int_value()).into(),
            Mem::I32 => b.sext(b.load(b.i32_ty(), from, 4).into_int_value(), b.i64_ty()).into(),
            Mem::U8 => b.zext(b.load(b.i8_ty(), from, 1).into_int_value(), b.i64_ty()).into(),
        })
    }

    fn inst(&mut self, inst: &Inst, parallel: bool) -> Result<BasicValueEnum<'c>, NvptxError> {
        if let Inst::Load { place, at, mem } = *inst {
            return self.load(place, at, mem, parallel);
        }
        let b = &self.b;
        let n_params = self.func.params.len() as u32;
        Ok(match *inst {
            Inst::ConstI(c) => b.i64(c).into(),
            Inst::ConstF(c) => b.f32(c).into(),
            Inst::Dim(sym) => b.int_param(n_params + sym as u32).into(),
            Inst::RowBegin => b.zext(b.block_x(), b.i64_ty()).into(),
            Inst::RowCount => b.i64(1).into(),
            Inst::I(op, x, y) => self.int_op(op, self.int(x)?, self.int(y)?).into(),
            Inst::F(op, x, y) => self.float_op(op, self.float(x)?, self.float(y)?).into(),
            Inst::Fma(x, y, z) => b.fma(self.float(x)?, self.float(y)?, self.float(z)?).into(),
            Inst::U(f, x) => self.function(f, self.float(x)?).into(),
            Inst::Cmp(c, x, y) => self.compare(c, x, y)?.into(),
            Inst::And(x, y) => b.and(self.int(x)?, self.int(y)?).into(),
            Inst::Or(x, y) => b.or(self.int(x)?, self.int(y)?).into(),
            Inst::Not(x) => b.not(self.int(x)?).into(),
            Inst::Select(c, x, y) => b.select(self.int(c)?, self.get(x)?, self.get(y)?),
            Inst::IToF(x) => b.int_to_float(self.int(x)?, b.f32_ty()).into(),
            Inst::FToI(x) => b.sext(b.float_to_int(self.float(x)?), b.i64_ty()).into(),
            Inst::Bits(x) => b.zext(b.as_bits(self.float(x)?), b.i64_ty()).into(),
            Inst::FromBits(x) => b.as_float(b.trunc(self.int(x)?, b.i32_ty())).into(),
            Inst::Load { .. } => return self.defect("a load is no arithmetic"),
        })
    }

    fn int_op(&self, op: IOp, x: IntValue<'c>, y: IntValue<'c>) -> IntValue<'c> {
        let b = &self.b;
        match op {
            IOp::Add => b.add(x, y),
            IOp::Sub => b.sub(x, y),
            IOp::Mul => b.mul(x, y),
            IOp::Div => b.div(x, y),
            IOp::Rem => b.rem(x, y),
            IOp::And => b.and(x, y),
            IOp::Or => b.or(x, y),
            IOp::Xor => b.xor(x, y),
            IOp::Shl => b.shl(x, y),
            IOp::Shr => b.shr(x, y),
            IOp::Min => b.smin(x, y),
            IOp::Max => b.smax(x, y),
        }
    }

    fn float_op(&self, op: FOp, x: FloatValue<'c>, y: FloatValue<'c>) -> FloatValue<'c> {
        let b = &self.b;
        match op {
            FOp::Add => b.fadd(x, y),
            FOp::Sub => b.fsub(x, y),
            FOp::Mul => b.fmul(x, y),
            FOp::Div => b.fdiv(x, y),
            FOp::Min => b.fmin(x, y),
            FOp::Max => b.fmax(x, y),
        }
    }

    fn function(&self, f: FUn, x: FloatValue<'c>) -> FloatValue<'c> {
        let b = &self.b;
        match f {
            FUn::Neg => b.fneg(x),
            FUn::Abs => b.fabs(x),
            FUn::Sqrt => b.sqrt(x),
            FUn::Exp => math::exp(b, x),
            FUn::Log1p => math::log1p(b, x),
            FUn::Sin => math::sin(b, x),
            FUn::Cos => math::cos(b, x),
            FUn::Rint => b.rint(x),
        }
    }

    fn compare(&self, c: Cmp, x: Var, y: Var) -> Result<IntValue<'c>, NvptxError> {
        let b = &self.b;
        if self.func.ty(x) == Ty::F {
            let p = match c {
                Cmp::Eq => FloatPredicate::OEQ,
                // As everywhere in IEEE 754, "not equal" is the one that NaN satisfies.
                Cmp::Ne => FloatPredicate::UNE,
                Cmp::Lt => FloatPredicate::OLT,
                Cmp::Le => FloatPredicate::OLE,
                Cmp::Gt => FloatPredicate::OGT,
                Cmp::Ge => FloatPredicate::OGE,
            };
            return Ok(b.fcmp(p, self.float(x)?, self.float(y)?));
        }
        let p = match c {
            Cmp::Eq => IntPredicate::EQ,
            Cmp::Ne => IntPredicate::NE,
            Cmp::Lt => IntPredicate::SLT,
            Cmp::Le => IntPredicate::SLE,
            Cmp::Gt => IntPredicate::SGT,
            Cmp::Ge => IntPredicate::SGE,
        };
        Ok(b.icmp(p, self.int(x)?, self.int(y)?))
    }
}
