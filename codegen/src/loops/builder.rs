//! Writes loop programs. Constants fold and repeat only once per nesting level of code that asks for them.

use super::prune::prune;
use super::{Acc, Carry, Cmp, Combine, FOp, FUn, Func, IOp, Inst, Mem, Param, Place, Scratch, Stmt, Ty, Var};
use dsc_ir::expr::{Expr, Sym};
use std::collections::HashMap;

/// Builds a [`Func`] statement by statement.
pub struct Builder {
    name: String,
    params: Vec<Param>,
    scratch: Vec<Scratch>,
    row_block: u64,
    types: Vec<Ty>,
    known: HashMap<Var, i64>,
    /// Values that are another value and a constant.
    sums: HashMap<Var, (Var, i64)>,
    stack: Vec<Vec<Stmt>>,
}

impl Builder {
    /// An empty function.
    pub fn new(name: impl Into<String>, params: Vec<Param>, row_block: u64) -> Builder {
        Builder {
            name: name.into(),
            params,
            scratch: Vec::new(),
            row_block,
            types: Vec::new(),
            known: HashMap::new(),
            sums: HashMap::new(),
            stack: vec![Vec::new()],
        }
    }

    /// The finished function, without values that nothing uses.
    pub fn finish(mut self) -> Func {
        let mut body = self.stack.pop().unwrap_or_default();
        prune(&mut body);
        Func {
            name: self.name,
            params: self.params,
            scratch: self.scratch,
            row_block: self.row_block,
            body,
            types: self.types,
        }
    }

    /// Most rows of a block.
    pub fn row_block(&self) -> u64 {
        self.row_block
    }

    /// A new scratch area of at least `bytes`.
    pub fn scratch(&mut self, name: impl Into<String>, bytes: u64) -> Place {
        let id = self.scratch.len() as u32;
        self.scratch.push(Scratch { name: name.into(), bytes: bytes.next_multiple_of(16).max(16) });
        Place::Scratch(id)
    }

    /// Makes a scratch area at least `bytes` large.
    pub fn grow(&mut self, place: Place, bytes: u64) {
        if let Place::Scratch(i) = place
            && let Some(area) = self.scratch.get_mut(i as usize)
        {
            area.bytes = area.bytes.max(bytes.next_multiple_of(16));
        }
    }

    fn var(&mut self, ty: Ty) -> Var {
        self.types.push(ty);
        Var(self.types.len() as u32 - 1)
    }

    fn push(&mut self, stmt: Stmt) {
        if let Some(block) = self.stack.last_mut() {
            block.push(stmt);
        }
    }

    fn def(&mut self, ty: Ty, inst: Inst) -> Var {
        let v = self.var(ty);
        self.push(Stmt::Let(v, inst));
        v
    }

    /// Type of a value.
    pub fn ty(&self, v: Var) -> Ty {
        self.types[v.0 as usize]
    }

    /// The value, where it is an integer constant.
    pub fn known(&self, v: Var) -> Option<i64> {
        self.known.get(&v).copied()
    }

    /// An integer constant.
    pub fn int(&mut self, c: impl TryInto<i64>) -> Var {
        let c = c.try_into().unwrap_or(i64::MAX);
        let v = self.def(Ty::I, Inst::ConstI(c));
        self.known.insert(v, c);
        v
    }

    /// A float constant.
    pub fn float(&mut self, c: f32) -> Var {
        self.def(Ty::F, Inst::ConstF(c))
    }

    /// First row of the block.
    pub fn row_begin(&mut self) -> Var {
        self.def(Ty::I, Inst::RowBegin)
    }

    /// Rows in the block.
    pub fn row_count(&mut self) -> Var {
        self.def(Ty::I, Inst::RowCount)
    }

    /// A launch-time dimension.
    pub fn dim(&mut self, sym: Sym) -> Var {
        self.def(Ty::I, Inst::Dim(sym))
    }

    /// A symbolic size.
    pub fn size(&mut self, e: &Expr) -> Var {
        match e {
            Expr::Const(c) => self.int(*c),
            Expr::Sym(s) => self.dim(*s),
            Expr::Add(v) => self.fold(v, IOp::Add),
            Expr::Mul(v) => self.fold(v, IOp::Mul),
            Expr::CeilDiv(e, d) => {
                let e = self.size(e);
                let up = self.iadd_c(e, *d as i64 - 1);
                self.idiv_c(up, *d as i64)
            }
            Expr::Min(a, b) => {
                let (a, b) = (self.size(a), self.size(b));
                self.i(IOp::Min, a, b)
            }
        }
    }

    fn fold(&mut self, items: &[Expr], op: IOp) -> Var {
        let mut acc = None;
        for e in items {
            let v = self.size(e);
            acc = Some(match acc {
                Some(a) => self.i(op, a, v),
                None => v,
            });
        }
        acc.unwrap_or_else(|| self.int(0))
    }

    /// Integer operation; folds constants and neutral elements, and moves constant terms of sums outwards, so that
    /// neighbouring addresses differ in their last constant alone.
    pub fn i(&mut self, op: IOp, a: Var, b: Var) -> Var {
        let (ka, kb) = (self.known(a), self.known(b));
        if let (Some(x), Some(y)) = (ka, kb)
            && let Some(c) = fold_int(op, x, y)
        {
            return self.int(c);
        }
        match (op, ka, kb) {
            (IOp::Add | IOp::Or | IOp::Xor, Some(0), _) | (IOp::Mul, Some(1), _) => b,
            (IOp::Add | IOp::Sub | IOp::Or | IOp::Xor | IOp::Shl | IOp::Shr, _, Some(0))
            | (IOp::Mul | IOp::Div, _, Some(1)) => a,
            (IOp::Mul, _, Some(0)) | (IOp::Mul, Some(0), _) => self.int(0),
            (IOp::Add, ..) => self.sum(a, b),
            (IOp::Mul, None, Some(c)) => self.scaled(a, c).unwrap_or_else(|| self.def(Ty::I, Inst::I(op, a, b))),
            (IOp::Mul, Some(c), None) => self.scaled(b, c).unwrap_or_else(|| self.def(Ty::I, Inst::I(op, a, b))),
            _ => self.def(Ty::I, Inst::I(op, a, b)),
        }
    }

    /// A value as another one, if it is no constant, and a constant.
    fn parts(&self, v: Var) -> (Option<Var>, i64) {
        match (self.known(v), self.sums.get(&v)) {
            (Some(c), _) => (None, c),
            (None, Some((base, c))) => (Some(*base), *c),
            (None, None) => (Some(v), 0),
        }
    }

    fn sum(&mut self, a: Var, b: Var) -> Var {
        let ((x, c), (y, d)) = (self.parts(a), self.parts(b));
        let constant = c.wrapping_add(d);
        let base = match (x, y) {
            (Some(x), Some(y)) => self.def(Ty::I, Inst::I(IOp::Add, x, y)),
            (Some(v), None) | (None, Some(v)) => v,
            (None, None) => return self.int(constant),
        };
        if constant == 0 {
            return base;
        }
        let term = self.int(constant);
        let v = self.def(Ty::I, Inst::I(IOp::Add, base, term));
        self.sums.insert(v, (base, constant));
        v
    }

    /// `(base + c) * factor` as `base * factor + c * factor`.
    fn scaled(&mut self, v: Var, factor: i64) -> Option<Var> {
        let (base, c) = self.sums.get(&v).copied()?;
        let (product, term) = (self.imul_c(base, factor), self.int(c.wrapping_mul(factor)));
        Some(self.sum(product, term))
    }

    /// `a + b`.
    pub fn iadd(&mut self, a: Var, b: Var) -> Var {
        self.i(IOp::Add, a, b)
    }

    /// `a - b`.
    pub fn isub(&mut self, a: Var, b: Var) -> Var {
        self.i(IOp::Sub, a, b)
    }

    /// `a * b`.
    pub fn imul(&mut self, a: Var, b: Var) -> Var {
        self.i(IOp::Mul, a, b)
    }

    /// `a + c`.
    pub fn iadd_c(&mut self, a: Var, c: i64) -> Var {
        let c = self.int(c);
        self.iadd(a, c)
    }

    /// `a * c`.
    pub fn imul_c(&mut self, a: Var, c: i64) -> Var {
        let c = self.int(c);
        self.imul(a, c)
    }

    /// `a / c`, of a non-negative value.
    pub fn idiv_c(&mut self, a: Var, c: i64) -> Var {
        let c = self.int(c);
        self.i(IOp::Div, a, c)
    }

    /// `a % c`, of a non-negative value.
    pub fn irem_c(&mut self, a: Var, c: i64) -> Var {
        let c = self.int(c);
        self.i(IOp::Rem, a, c)
    }

    /// Float operation.
    pub fn f(&mut self, op: FOp, a: Var, b: Var) -> Var {
        self.def(Ty::F, Inst::F(op, a, b))
    }

    /// `a + b`.
    pub fn fadd(&mut self, a: Var, b: Var) -> Var {
        self.f(FOp::Add, a, b)
    }

    /// `a - b`.
    pub fn fsub(&mut self, a: Var, b: Var) -> Var {
        self.f(FOp::Sub, a, b)
    }

    /// `a * b`.
    pub fn fmul(&mut self, a: Var, b: Var) -> Var {
        self.f(FOp::Mul, a, b)
    }

    /// `a / b`.
    pub fn fdiv(&mut self, a: Var, b: Var) -> Var {
        self.f(FOp::Div, a, b)
    }

    /// `a * b + c`, rounded once.
    pub fn fma(&mut self, a: Var, b: Var, c: Var) -> Var {
        self.def(Ty::F, Inst::Fma(a, b, c))
    }

    /// Function of a float.
    pub fn u(&mut self, f: FUn, a: Var) -> Var {
        self.def(Ty::F, Inst::U(f, a))
    }

    /// Comparison.
    pub fn cmp(&mut self, c: Cmp, a: Var, b: Var) -> Var {
        self.def(Ty::B, Inst::Cmp(c, a, b))
    }

    /// Both true.
    pub fn and(&mut self, a: Var, b: Var) -> Var {
        self.def(Ty::B, Inst::And(a, b))
    }

    /// Either true.
    pub fn or(&mut self, a: Var, b: Var) -> Var {
        self.def(Ty::B, Inst::Or(a, b))
    }

    /// Not true.
    pub fn not(&mut self, a: Var) -> Var {
        self.def(Ty::B, Inst::Not(a))
    }

    /// `if c { a } else { b }`.
    pub fn select(&mut self, c: Var, a: Var, b: Var) -> Var {
        let ty = self.ty(a);
        self.def(ty, Inst::Select(c, a, b))
    }

    /// Integer to float.
    pub fn itof(&mut self, a: Var) -> Var {
        self.def(Ty::F, Inst::IToF(a))
    }

    /// Float to integer, towards zero.
    pub fn ftoi(&mut self, a: Var) -> Var {
        self.def(Ty::I, Inst::FToI(a))
    }

    /// Bits of a float.
    pub fn bits(&mut self, a: Var) -> Var {
        self.def(Ty::I, Inst::Bits(a))
    }

    /// Float of bits.
    pub fn from_bits(&mut self, a: Var) -> Var {
        self.def(Ty::F, Inst::FromBits(a))
    }

    /// Load at a byte address.
    pub fn load(&mut self, place: Place, at: Var, mem: Mem) -> Var {
        self.def(mem.ty(), Inst::Load { place, at, mem })
    }

    /// Store at a byte address.
    pub fn store(&mut self, place: Place, at: Var, mem: Mem, value: Var) {
        if let Place::Param(i) = place
            && let Some(p) = self.params.get_mut(i as usize)
        {
            p.written = true;
        }
        self.push(Stmt::Store { place, at, mem, value });
    }

    fn nested<R>(&mut self, f: impl FnOnce(&mut Builder) -> R) -> (Vec<Stmt>, R) {
        self.stack.push(Vec::new());
        let r = f(self);
        (self.stack.pop().unwrap_or_default(), r)
    }

    /// Sequential loop over `lo .. hi`.
    pub fn for_(&mut self, lo: Var, hi: Var, f: impl FnOnce(&mut Builder, Var)) {
        let var = self.var(Ty::I);
        let (body, ()) = self.nested(|b| f(b, var));
        self.push(Stmt::For { var, lo, hi, carries: Vec::new(), body });
    }

    /// Opens a sequential loop and gives its variable; what follows is its body until [`Builder::close_for`].
    pub fn open_for(&mut self) -> Var {
        self.stack.push(Vec::new());
        self.var(Ty::I)
    }

    /// Closes the loop of this variable, over `lo .. hi`.
    pub fn close_for(&mut self, var: Var, lo: Var, hi: Var) {
        let body = self.stack.pop().unwrap_or_default();
        self.push(Stmt::For { var, lo, hi, carries: Vec::new(), body });
    }

    /// Sequential loop over `lo .. hi` that carries values; `f` gets their current values and returns the next ones.
    pub fn fold_<const N: usize>(
        &mut self,
        lo: Var,
        hi: Var,
        init: [Var; N],
        f: impl FnOnce(&mut Builder, Var, [Var; N]) -> [Var; N],
    ) -> [Var; N] {
        let mut outs = init;
        let last = self.fold_all(lo, hi, &init, |b, i, phis| {
            let mut held = init;
            held.copy_from_slice(phis);
            f(b, i, held).to_vec()
        });
        outs.copy_from_slice(&last);
        outs
    }

    /// The same for a number of values known only here; `f` returns as many as it gets.
    pub fn fold_all(
        &mut self,
        lo: Var,
        hi: Var,
        init: &[Var],
        f: impl FnOnce(&mut Builder, Var, &[Var]) -> Vec<Var>,
    ) -> Vec<Var> {
        let var = self.var(Ty::I);
        let phis = self.like(init);
        let (body, next) = self.nested(|b| f(b, var, &phis));
        let outs = self.like(init);
        let values = init.iter().zip(&phis).zip(next.iter().zip(&outs));
        let carries = values.map(|((init, phi), (next, out))| Carry { init: *init, phi: *phi, next: *next, out: *out });
        let carries = carries.collect();
        self.push(Stmt::For { var, lo, hi, carries, body });
        outs
    }

    /// New values of the types of these.
    fn like(&mut self, values: &[Var]) -> Vec<Var> {
        values
            .iter()
            .map(|v| {
                let ty = self.ty(*v);
                self.var(ty)
            })
            .collect()
    }

    /// Independent iterations `0 .. n`.
    pub fn lanes(&mut self, n: Var, f: impl FnOnce(&mut Builder, Var)) {
        let var = self.var(Ty::I);
        let (body, ()) = self.nested(|b| f(b, var));
        self.push(Stmt::Lanes { var, n, body });
    }

    /// Combines what `f` returns per iteration; several values at once.
    pub fn reduce_n(&mut self, n: Var, f: impl FnOnce(&mut Builder, Var) -> Vec<(Combine, Var)>) -> Vec<Var> {
        let var = self.var(Ty::I);
        let (body, values) = self.nested(|b| f(b, var));
        let accs: Vec<Acc> = values
            .into_iter()
            .map(|(combine, value)| Acc {
                combine,
                value,
                out: self.var(if combine == Combine::SumI { Ty::I } else { Ty::F }),
                out_index: (combine == Combine::ArgMax).then(|| self.var(Ty::I)),
            })
            .collect();
        let outs = accs.iter().map(|a| a.out).collect();
        self.push(Stmt::Reduce { var, n, body, accs });
        outs
    }

    /// Combines one value per iteration.
    pub fn reduce(&mut self, n: Var, combine: Combine, f: impl FnOnce(&mut Builder, Var) -> Var) -> Var {
        self.reduce_n(n, |b, i| vec![(combine, f(b, i))])[0]
    }

    /// Largest value and its iteration (lowest on ties); (-inf, -1) when there is none above -inf.
    pub fn argmax(&mut self, n: Var, f: impl FnOnce(&mut Builder, Var) -> Var) -> (Var, Var) {
        let var = self.var(Ty::I);
        let (body, value) = self.nested(|b| f(b, var));
        let (out, index) = (self.var(Ty::F), self.var(Ty::I));
        let acc = Acc { combine: Combine::ArgMax, value, out, out_index: Some(index) };
        self.push(Stmt::Reduce { var, n, body, accs: vec![acc] });
        (out, index)
    }

    /// Runs `f` where `cond` holds.
    pub fn if_(&mut self, cond: Var, f: impl FnOnce(&mut Builder)) {
        let (body, ()) = self.nested(f);
        self.push(Stmt::If { cond, body });
    }

    /// The dense micro-kernel; see [`Stmt::Dense`].
    #[allow(clippy::too_many_arguments)] // one per operand of the statement
    pub fn dense(
        &mut self,
        y: (Place, Var),
        y_stride: Var,
        x: (Place, Var),
        x_stride: Var,
        w: (Place, Var),
        [m, n, k]: [Var; 3],
    ) {
        if let Place::Param(i) = y.0
            && let Some(p) = self.params.get_mut(i as usize)
        {
            p.written = true;
        }
        self.push(Stmt::Dense { y, y_stride, x, x_stride, w, m, n, k });
    }
}

fn fold_int(op: IOp, a: i64, b: i64) -> Option<i64> {
    Some(match op {
        IOp::Add => a.wrapping_add(b),
        IOp::Sub => a.wrapping_sub(b),
        IOp::Mul => a.wrapping_mul(b),
        IOp::Div => (a as u64).checked_div(b as u64)? as i64,
        IOp::Rem => (a as u64).checked_rem(b as u64)? as i64,
        IOp::And => a & b,
        IOp::Or => a | b,
        IOp::Xor => a ^ b,
        IOp::Shl => a.checked_shl(u32::try_from(b).ok()?)?,
        IOp::Shr => (a as u64).checked_shr(u32::try_from(b).ok()?)? as i64,
        IOp::Min => a.min(b),
        IOp::Max => a.max(b),
    })
}
