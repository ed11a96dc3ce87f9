//! Single instructions.

use super::{CpuError, Emitter};
use crate::loops::{Cmp, FOp, FUn, IOp, Inst, Mem, Place, Ty, Var};
use cranelift_codegen::ir::condcodes::{FloatCC, IntCC};
use cranelift_codegen::ir::{InstBuilder, MemFlagsData, Value, types};
use dsc_ir::cpu_abi;

/// Accesses never trap; elements of packed rows need not be aligned.
fn flags() -> MemFlagsData {
    MemFlagsData::new().with_notrap()
}

impl Emitter<'_, '_> {
    pub(super) fn inst(&mut self, v: Var, inst: &Inst) -> Result<Value, CpuError> {
        Ok(match *inst {
            Inst::ConstI(c) => {
                self.constants.insert(v, c);
                self.int(c)
            }
            Inst::ConstF(c) => self.f.ins().f32const(c),
            Inst::Dim(s) => self.dim(s).map_or_else(|| self.fail("no such dimension"), Ok)?,
            Inst::RowBegin => self.row_begin.map_or_else(|| self.fail("no row loop"), Ok)?,
            Inst::RowCount => self.row_count.map_or_else(|| self.fail("no row loop"), Ok)?,
            Inst::I(op, a, b) => self.integer(v, op, a, b)?,
            Inst::F(op, a, b) => self.float(op, a, b)?,
            Inst::Fma(a, b, c) => {
                let args = [self.value(a)?, self.value(b)?, self.value(c)?];
                self.call(&cpu_abi::FMA, &args)?
            }
            Inst::U(f, a) => self.unary(f, a)?,
            Inst::Cmp(cmp, a, b) => self.compare(cmp, a, b)?,
            Inst::And(a, b) => {
                let (a, b) = (self.value(a)?, self.value(b)?);
                self.f.ins().band(a, b)
            }
            Inst::Or(a, b) => {
                let (a, b) = (self.value(a)?, self.value(b)?);
                self.f.ins().bor(a, b)
            }
            Inst::Not(a) => {
                let a = self.value(a)?;
                self.f.ins().icmp_imm_s(IntCC::Equal, a, 0)
            }
            Inst::Select(c, a, b) => {
                let (c, a, b) = (self.value(c)?, self.value(a)?, self.value(b)?);
                self.f.ins().select(c, a, b)
            }
            Inst::IToF(a) => {
                let a = self.value(a)?;
                self.f.ins().fcvt_from_sint(types::F32, a)
            }
            Inst::FToI(a) => {
                let a = self.value(a)?;
                let narrow = self.f.ins().fcvt_to_sint_sat(types::I32, a);
                self.f.ins().sextend(types::I64, narrow)
            }
            Inst::Bits(a) => {
                let a = self.value(a)?;
                let bits = self.f.ins().bitcast(types::I32, MemFlagsData::new(), a);
                self.f.ins().uextend(types::I64, bits)
            }
            Inst::FromBits(a) => {
                let a = self.value(a)?;
                let bits = self.f.ins().ireduce(types::I32, a);
                self.f.ins().bitcast(types::F32, MemFlagsData::new(), bits)
            }
            Inst::Load { place, at, mem } => self.load(place, at, mem)?,
        })
    }

    fn call(&mut self, lent: &cpu_abi::Lent, args: &[Value]) -> Result<Value, CpuError> {
        let f = self.lent(lent, &vec![types::F32; args.len()], Some(types::F32));
        let call = self.f.ins().call(f, args);
        match self.f.inst_results(call) {
            [result] => Ok(*result),
            _ => self.fail(format!("{} returns one value", lent.name)),
        }
    }

    fn integer(&mut self, v: Var, op: IOp, a: Var, b: Var) -> Result<Value, CpuError> {
        self.note_sum(v, op, a, b);
        let (x, y) = (self.value(a)?, self.value(b)?);
        let ins = self.f.ins();
        Ok(match op {
            IOp::Add => ins.iadd(x, y),
            IOp::Sub => ins.isub(x, y),
            IOp::Mul => ins.imul(x, y),
            IOp::Div => ins.udiv(x, y),
            IOp::Rem => ins.urem(x, y),
            IOp::And => ins.band(x, y),
            IOp::Or => ins.bor(x, y),
            IOp::Xor => ins.bxor(x, y),
            IOp::Shl => ins.ishl(x, y),
            IOp::Shr => ins.ushr(x, y),
            IOp::Min => ins.smin(x, y),
            IOp::Max => ins.smax(x, y),
        })
    }

    /// Remembers `a + constant`, so that accesses at it use an offset.
    fn note_sum(&mut self, v: Var, op: IOp, a: Var, b: Var) {
        if op != IOp::Add {
            return;
        }
        let constant = |v: Var| self.constants.get(&v).and_then(|c| i32::try_from(*c).ok());
        let found = match (constant(a), constant(b)) {
            (None, Some(c)) => Some((a, c)),
            (Some(c), None) => Some((b, c)),
            _ => None,
        };
        let Some((base, c)) = found else { return };
        let (base, c) = match self.sums.get(&base) {
            Some((inner, d)) => match c.checked_add(*d) {
                Some(c) => (*inner, c),
                None => (base, c),
            },
            None => (base, c),
        };
        self.sums.insert(v, (base, c));
    }

    /// Minimum and maximum as comparisons: x64 has them as one instruction each.
    fn float(&mut self, op: FOp, a: Var, b: Var) -> Result<Value, CpuError> {
        let (x, y) = (self.value(a)?, self.value(b)?);
        Ok(match op {
            FOp::Add => self.f.ins().fadd(x, y),
            FOp::Sub => self.f.ins().fsub(x, y),
            FOp::Mul => self.f.ins().fmul(x, y),
            FOp::Div => self.f.ins().fdiv(x, y),
            FOp::Min => {
                let less = self.f.ins().fcmp(FloatCC::LessThan, x, y);
                self.f.ins().select(less, x, y)
            }
            FOp::Max => self.larger(x, y),
        })
    }

    pub(super) fn larger(&mut self, x: Value, y: Value) -> Value {
        let greater = self.f.ins().fcmp(FloatCC::GreaterThan, x, y);
        self.f.ins().select(greater, x, y)
    }

    fn unary(&mut self, f: FUn, a: Var) -> Result<Value, CpuError> {
        let x = self.value(a)?;
        Ok(match f {
            FUn::Neg => self.f.ins().fneg(x),
            FUn::Abs => self.f.ins().fabs(x),
            FUn::Sqrt => self.f.ins().sqrt(x),
            FUn::Rint => self.f.ins().nearest(x),
            FUn::Exp => self.call(&cpu_abi::EXP, &[x])?,
            FUn::Log1p => self.call(&cpu_abi::LOG1P, &[x])?,
            FUn::Sin => self.call(&cpu_abi::SIN, &[x])?,
            FUn::Cos => self.call(&cpu_abi::COS, &[x])?,
        })
    }

    fn compare(&mut self, cmp: Cmp, a: Var, b: Var) -> Result<Value, CpuError> {
        let (x, y) = (self.value(a)?, self.value(b)?);
        if self.func.ty(a) == Ty::F {
            let cc = match cmp {
                Cmp::Eq => FloatCC::Equal,
                Cmp::Ne => FloatCC::OrderedNotEqual,
                Cmp::Lt => FloatCC::LessThan,
                Cmp::Le => FloatCC::LessThanOrEqual,
                Cmp::Gt => FloatCC::GreaterThan,
                Cmp::Ge => FloatCC::GreaterThanOrEqual,
            };
            return Ok(self.f.ins().fcmp(cc, x, y));
        }
        let cc = match cmp {
            Cmp::Eq => IntCC::Equal,
            Cmp::Ne => IntCC::NotEqual,
            Cmp::Lt => IntCC::SignedLessThan,
            Cmp::Le => IntCC::SignedLessThanOrEqual,
            Cmp::Gt => IntCC::SignedGreaterThan,
            Cmp::Ge => IntCC::SignedGreaterThanOrEqual,
        };
        Ok(self.f.ins().icmp(cc, x, y))
    }

    /// Address and offset of an access.
    fn address(&mut self, place: Place, at: Var) -> Result<(Value, i32), CpuError> {
        let Some(base) = self.base(place) else {
            return self.fail(format!("there is no {place}"));
        };
        if let Some(c) = self.constants.get(&at).and_then(|c| i32::try_from(*c).ok()) {
            return Ok((base, c));
        }
        let (at, offset) = self.sums.get(&at).copied().unwrap_or((at, 0));
        let at = self.value(at)?;
        Ok((self.f.ins().iadd(base, at), offset))
    }

    fn load(&mut self, place: Place, at: Var, mem: Mem) -> Result<Value, CpuError> {
        let (address, offset) = self.address(place, at)?;
        Ok(match mem {
            Mem::F32 => self.f.ins().load(types::F32, flags(), address, offset),
            Mem::I32 => self.f.ins().sload32(flags(), address, offset),
            Mem::U8 => self.f.ins().uload8(types::I64, flags(), address, offset),
            Mem::Bf16 => {
                let half = self.f.ins().uload16(types::I32, flags(), address, offset);
                let bits = self.f.ins().ishl_imm_s(half, 16);
                self.f.ins().bitcast(types::F32, MemFlagsData::new(), bits)
            }
        })
    }

    pub(super) fn store(&mut self, place: Place, at: Var, mem: Mem, value: Var) -> Result<(), CpuError> {
        let (address, offset) = self.address(place, at)?;
        let value = self.value(value)?;
        match mem {
            Mem::F32 => self.f.ins().store(flags(), value, address, offset),
            Mem::I32 => self.f.ins().istore32(flags(), value, address, offset),
            Mem::U8 => self.f.ins().istore8(flags(), value, address, offset),
            Mem::Bf16 => {
                let half = self.bf16_bits(value);
                self.f.ins().istore16(flags(), half, address, offset)
            }
        };
        Ok(())
    }

    /// The nearest bfloat16, ties to even; NaN stays NaN.
    fn bf16_bits(&mut self, x: Value) -> Value {
        let bits = self.f.ins().bitcast(types::I32, MemFlagsData::new(), x);
        let top = self.f.ins().ushr_imm_s(bits, 16);
        let odd = self.f.ins().band_imm_s(top, 1);
        let up = self.f.ins().iadd_imm_s(bits, 0x7FFF);
        let up = self.f.ins().iadd(up, odd);
        let rounded = self.f.ins().ushr_imm_s(up, 16);
        let quiet = self.f.ins().bor_imm_s(top, 0x40);
        let is_number = self.f.ins().fcmp(FloatCC::Equal, x, x);
        self.f.ins().select(is_number, rounded, quiet)
    }
}
