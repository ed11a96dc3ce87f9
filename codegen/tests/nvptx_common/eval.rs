//! Loop programs on the host, statement by statement: what a row kernel must compute.

use dsc_codegen::loops::{Cmp, Combine, FOp, FUn, Func, IOp, Inst, Mem, Place, Stmt, Ty, Var};

#[derive(Clone, Copy)]
enum Value {
    I(i64),
    F(f32),
    B(bool),
}

struct Machine<'a> {
    func: &'a Func,
    row: i64,
    dims: [u64; 5],
    params: &'a mut [Vec<u8>],
    scratch: Vec<Vec<u8>>,
    values: Vec<Value>,
}

/// Runs `func` for every row in `0..rows`.
pub fn run(func: &Func, rows: u64, dims: [u64; 5], params: &mut [Vec<u8>]) {
    for row in 0..rows as i64 {
        let scratch = func.scratch.iter().map(|s| vec![0xFF; s.bytes as usize]).collect();
        let values = vec![Value::I(0); func.types.len()];
        let mut m = Machine { func, row, dims, params: &mut *params, scratch, values };
        m.block(&func.body);
    }
}

impl Machine<'_> {
    fn i(&self, v: Var) -> i64 {
        match self.values[v.0 as usize] {
            Value::I(x) => x,
            _ => panic!("{v} is no integer"),
        }
    }

    fn f(&self, v: Var) -> f32 {
        match self.values[v.0 as usize] {
            Value::F(x) => x,
            _ => panic!("{v} is no float"),
        }
    }

    fn b(&self, v: Var) -> bool {
        match self.values[v.0 as usize] {
            Value::B(x) => x,
            _ => panic!("{v} is no truth"),
        }
    }

    fn set(&mut self, v: Var, value: Value) {
        self.values[v.0 as usize] = value;
    }

    fn bytes(&mut self, place: Place, at: i64, n: u64) -> &mut [u8] {
        let memory = match place {
            Place::Param(i) => &mut self.params[i as usize],
            Place::Scratch(i) => &mut self.scratch[i as usize],
        };
        &mut memory[at as usize..][..n as usize]
    }

    fn block(&mut self, stmts: &[Stmt]) {
        for s in stmts {
            match s {
                Stmt::Let(v, inst) => {
                    let value = self.inst(inst);
                    self.set(*v, value);
                }
                Stmt::Store { place, at, mem, value } => {
                    let at = self.i(*at);
                    let bits = match mem {
                        Mem::F32 => self.f(*value).to_bits(),
                        Mem::Bf16 => dsc_ir::format::bf16_round(self.f(*value)).to_bits() >> 16,
                        Mem::I32 | Mem::U8 => self.i(*value) as u32,
                    };
                    let n = mem.bytes();
                    self.bytes(*place, at, n).copy_from_slice(&bits.to_le_bytes()[..n as usize]);
                }
                Stmt::For { var, lo, hi, carries, body } => {
                    let mut carried: Vec<Value> = carries.iter().map(|c| self.values[c.init.0 as usize]).collect();
                    for i in self.i(*lo)..self.i(*hi) {
                        self.set(*var, Value::I(i));
                        for (c, v) in carries.iter().zip(&carried) {
                            self.values[c.phi.0 as usize] = *v;
                        }
                        self.block(body);
                        carried = carries.iter().map(|c| self.values[c.next.0 as usize]).collect();
                    }
                    for (c, v) in carries.iter().zip(carried) {
                        self.set(c.out, v);
                    }
                }
                Stmt::Lanes { var, n, body } => {
                    for i in 0..self.i(*n) {
                        self.set(*var, Value::I(i));
                        self.block(body);
                    }
                }
                Stmt::Reduce { var, n, body, accs } => {
                    let start = |a: &dsc_codegen::loops::Acc| match a.combine {
                        Combine::Sum => (0.0, 0),
                        Combine::SumI => (0.0, 0),
                        Combine::Max | Combine::ArgMax => (f32::NEG_INFINITY, -1),
                    };
                    let mut totals: Vec<(f32, i64)> = accs.iter().map(start).collect();
                    for i in 0..self.i(*n) {
                        self.set(*var, Value::I(i));
                        self.block(body);
                        for (a, total) in accs.iter().zip(&mut totals) {
                            match a.combine {
                                Combine::Sum => total.0 += self.f(a.value),
                                Combine::SumI => total.1 += self.i(a.value),
                                Combine::Max => total.0 = total.0.max(self.f(a.value)),
                                Combine::ArgMax if self.f(a.value) > total.0 => *total = (self.f(a.value), i),
                                Combine::ArgMax => {}
                            }
                        }
                    }
                    for (a, total) in accs.iter().zip(totals) {
                        self.set(a.out, if a.combine == Combine::SumI { Value::I(total.1) } else { Value::F(total.0) });
                        if let Some(i) = a.out_index {
                            self.set(i, Value::I(total.1));
                        }
                    }
                }
                Stmt::If { cond, body } => {
                    if self.b(*cond) {
                        self.block(body);
                    }
                }
                Stmt::Dense { .. } => panic!("dense"),
            }
        }
    }

    fn inst(&mut self, inst: &Inst) -> Value {
        match *inst {
            Inst::ConstI(c) => Value::I(c),
            Inst::ConstF(c) => Value::F(c),
            Inst::Dim(s) => Value::I(self.dims[s as usize] as i64),
            Inst::RowBegin => Value::I(self.row),
            Inst::RowCount => Value::I(1),
            Inst::I(op, a, b) => Value::I(int(op, self.i(a), self.i(b))),
            Inst::F(op, a, b) => Value::F(float(op, self.f(a), self.f(b))),
            Inst::Fma(a, b, c) => Value::F(self.f(a).mul_add(self.f(b), self.f(c))),
            Inst::U(f, a) => Value::F(function(f, self.f(a))),
            Inst::Cmp(c, a, b) if self.func.ty(a) == Ty::F => Value::B(holds(c, self.f(a).partial_cmp(&self.f(b)))),
            Inst::Cmp(c, a, b) => Value::B(holds(c, Some(self.i(a).cmp(&self.i(b))))),
            Inst::And(a, b) => Value::B(self.b(a) && self.b(b)),
            Inst::Or(a, b) => Value::B(self.b(a) || self.b(b)),
            Inst::Not(a) => Value::B(!self.b(a)),
            Inst::Select(c, a, b) => self.values[if self.b(c) { a } else { b }.0 as usize],
            Inst::IToF(a) => Value::F(self.i(a) as f32),
            Inst::FToI(a) => Value::I(i64::from(self.f(a) as i32)),
            Inst::Bits(a) => Value::I(i64::from(self.f(a).to_bits())),
            Inst::FromBits(a) => Value::F(f32::from_bits(self.i(a) as u32)),
            Inst::Load { place, at, mem } => {
                let at = self.i(at);
                let bytes = self.bytes(place, at, mem.bytes());
                let bits = bytes.iter().rev().fold(0u32, |v, b| v << 8 | u32::from(*b));
                match mem {
                    Mem::F32 => Value::F(f32::from_bits(bits)),
                    Mem::Bf16 => Value::F(f32::from_bits(bits << 16)),
                    Mem::I32 => Value::I(i64::from(bits as i32)),
                    Mem::U8 => Value::I(i64::from(bits)),
                }
            }
        }
    }
}

fn holds(c: Cmp, order: Option<std::cmp::Ordering>) -> bool {
    match c {
        Cmp::Eq => order.is_some_and(|o| o.is_eq()),
        Cmp::Ne => !order.is_some_and(|o| o.is_eq()),
        Cmp::Lt => order.is_some_and(|o| o.is_lt()),
        Cmp::Le => order.is_some_and(|o| o.is_le()),
        Cmp::Gt => order.is_some_and(|o| o.is_gt()),
        Cmp::Ge => order.is_some_and(|o| o.is_ge()),
    }
}

fn int(op: IOp, a: i64, b: i64) -> i64 {
    match op {
        IOp::Add => a.wrapping_add(b),
        IOp::Sub => a.wrapping_sub(b),
        IOp::Mul => a.wrapping_mul(b),
        IOp::Div => (a as u64 / b as u64) as i64,
        IOp::Rem => (a as u64 % b as u64) as i64,
        IOp::And => a & b,
        IOp::Or => a | b,
        IOp::Xor => a ^ b,
        IOp::Shl => a << b,
        IOp::Shr => (a as u64 >> b) as i64,
        IOp::Min => a.min(b),
        IOp::Max => a.max(b),
    }
}

fn float(op: FOp, a: f32, b: f32) -> f32 {
    match op {
        FOp::Add => a + b,
        FOp::Sub => a - b,
        FOp::Mul => a * b,
        FOp::Div => a / b,
        FOp::Min => a.min(b),
        FOp::Max => a.max(b),
    }
}

fn function(f: FUn, x: f32) -> f32 {
    match f {
        FUn::Neg => -x,
        FUn::Abs => x.abs(),
        FUn::Sqrt => x.sqrt(),
        FUn::Exp => f64::from(x).exp() as f32,
        FUn::Log1p => f64::from(x).ln_1p() as f32,
        FUn::Sin => f64::from(x).sin() as f32,
        FUn::Cos => f64::from(x).cos() as f32,
        FUn::Rint => x.round_ties_even(),
    }
}
