//! Statements: loops become blocks with the carried values as block parameters.

use super::{CpuError, Emitter};
use crate::loops::{Acc, Carry, Combine, Place, Stmt, Var};
use cranelift_codegen::ir::condcodes::{FloatCC, IntCC};
use cranelift_codegen::ir::{BlockArg, InstBuilder, Value, types};
use dsc_ir::cpu_abi;

impl Emitter<'_, '_> {
    pub(super) fn block(&mut self, stmts: &[Stmt]) -> Result<(), CpuError> {
        stmts.iter().try_for_each(|s| self.stmt(s))
    }

    fn stmt(&mut self, s: &Stmt) -> Result<(), CpuError> {
        match s {
            Stmt::Let(v, inst) => {
                let value = self.inst(*v, inst)?;
                self.set(*v, value);
                Ok(())
            }
            Stmt::Store { place, at, mem, value } => self.store(*place, *at, *mem, *value),
            Stmt::For { var, lo, hi, carries, body } => self.for_(*var, *lo, *hi, carries, body),
            Stmt::Lanes { var, n, body } => {
                let zero = self.int(0);
                let n = self.value(*n)?;
                self.loop_(*var, zero, n, &[], |e, _| {
                    e.block(body)?;
                    Ok(Vec::new())
                })?;
                Ok(())
            }
            Stmt::Reduce { var, n, body, accs } => self.reduce(*var, *n, body, accs),
            Stmt::If { cond, body } => self.if_(*cond, body),
            Stmt::Dense { y, y_stride, x, x_stride, w, m, n, k } => {
                let (y, x, w) = (self.place(*y)?, self.place(*x)?, self.place(*w)?);
                let mut args = vec![y, self.value(*y_stride)?, x, self.value(*x_stride)?, w];
                for v in [m, n, k] {
                    args.push(self.value(*v)?);
                }
                let f = self.lent(&cpu_abi::DENSE, &[types::I64; 8], None);
                self.f.ins().call(f, &args);
                Ok(())
            }
        }
    }

    fn place(&mut self, (place, at): (Place, Var)) -> Result<Value, CpuError> {
        let Some(base) = self.base(place) else {
            return self.fail(format!("there is no {place}"));
        };
        let at = self.value(at)?;
        Ok(self.f.ins().iadd(base, at))
    }

    /// A loop over `lo .. hi`; `body` gets the carried values and gives the next ones. Returns the last ones.
    fn loop_(
        &mut self,
        var: Var,
        lo: Value,
        hi: Value,
        init: &[Value],
        body: impl FnOnce(&mut Self, &[Value]) -> Result<Vec<Value>, CpuError>,
    ) -> Result<Vec<Value>, CpuError> {
        let [header, inside, exit] = self.loop_blocks();
        let i = self.f.append_block_param(header, types::I64);
        let mut phis = Vec::new();
        for v in init {
            let ty = self.f.func.dfg.value_type(*v);
            phis.push(self.f.append_block_param(header, ty));
        }
        let args: Vec<BlockArg> = std::iter::once(lo).chain(init.iter().copied()).map(BlockArg::from).collect();
        self.f.ins().jump(header, &args);
        self.f.switch_to_block(header);
        let more = self.f.ins().icmp(IntCC::SignedLessThan, i, hi);
        self.f.ins().brif(more, inside, &[], exit, &[]);
        self.f.switch_to_block(inside);
        self.set(var, i);
        let next = body(self, &phis)?;
        let step = self.f.ins().iadd_imm_s(i, 1);
        let args: Vec<BlockArg> = std::iter::once(step).chain(next).map(BlockArg::from).collect();
        self.f.ins().jump(header, &args);
        self.f.switch_to_block(exit);
        Ok(phis)
    }

    fn for_(&mut self, var: Var, lo: Var, hi: Var, carries: &[Carry], body: &[Stmt]) -> Result<(), CpuError> {
        let (lo, hi) = (self.value(lo)?, self.value(hi)?);
        let init = carries.iter().map(|c| self.value(c.init)).collect::<Result<Vec<_>, _>>()?;
        let last = self.loop_(var, lo, hi, &init, |e, phis| {
            for (c, phi) in carries.iter().zip(phis) {
                e.set(c.phi, *phi);
            }
            e.block(body)?;
            carries.iter().map(|c| e.value(c.next)).collect()
        })?;
        for (c, v) in carries.iter().zip(last) {
            self.set(c.out, v);
        }
        Ok(())
    }

    /// A reduction is a loop that carries its accumulators, an arg-max two of them. Sums are taken in f64 and rounded
    /// once: they are as good as any order a GPU adds in, so that values next to a rounding boundary seldom differ.
    fn reduce(&mut self, var: Var, n: Var, body: &[Stmt], accs: &[Acc]) -> Result<(), CpuError> {
        let n = self.value(n)?;
        let mut init = Vec::new();
        for a in accs {
            init.push(self.start(a.combine));
            if a.combine == Combine::ArgMax {
                init.push(self.int(-1));
            }
        }
        let zero = self.int(0);
        let last = self.loop_(var, zero, n, &init, |e, phis| {
            e.block(body)?;
            let i = e.value(var)?;
            let (mut next, mut phis) = (Vec::new(), phis.iter().copied());
            for a in accs {
                let value = e.value(a.value)?;
                let Some(acc) = phis.next() else { break };
                match a.combine {
                    Combine::Sum => {
                        let wide = e.f.ins().fpromote(types::F64, value);
                        next.push(e.f.ins().fadd(acc, wide));
                    }
                    Combine::SumI => next.push(e.f.ins().iadd(acc, value)),
                    Combine::Max => next.push(e.larger(value, acc)),
                    Combine::ArgMax => {
                        let Some(index) = phis.next() else { break };
                        let better = e.f.ins().fcmp(FloatCC::GreaterThan, value, acc);
                        next.push(e.f.ins().select(better, value, acc));
                        next.push(e.f.ins().select(better, i, index));
                    }
                }
            }
            Ok(next)
        })?;
        let mut last = last.into_iter();
        for a in accs {
            for v in std::iter::once(a.out).chain(a.out_index.filter(|_| a.combine == Combine::ArgMax)) {
                if let Some(mut value) = last.next() {
                    if a.combine == Combine::Sum {
                        value = self.f.ins().fdemote(types::F32, value);
                    }
                    self.set(v, value);
                }
            }
        }
        Ok(())
    }

    fn start(&mut self, combine: Combine) -> Value {
        match combine {
            Combine::Sum => self.f.ins().f64const(0.0),
            Combine::Max | Combine::ArgMax => self.f.ins().f32const(f32::NEG_INFINITY),
            Combine::SumI => self.int(0),
        }
    }

    fn if_(&mut self, cond: Var, body: &[Stmt]) -> Result<(), CpuError> {
        let cond = self.value(cond)?;
        let (inside, exit) = (self.f.create_block(), self.f.create_block());
        self.f.ins().brif(cond, inside, &[], exit, &[]);
        self.f.switch_to_block(inside);
        self.block(body)?;
        self.f.ins().jump(exit, &[]);
        self.f.switch_to_block(exit);
        Ok(())
    }
}
