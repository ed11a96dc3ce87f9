//! Checks a loop program: single assignment, scopes, types, and what may nest in what.

use super::{Combine, Func, Inst, Place, Stmt, Ty, Var};
use std::collections::HashSet;

/// A defect of a loop program: a defect of dsc, never of the user's input.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("loop program `{func}`: {message}")]
pub struct LoopError {
    /// Symbol.
    pub func: String,
    /// What is wrong.
    pub message: String,
}

struct Checker<'a> {
    func: &'a Func,
    live: HashSet<Var>,
    defined: HashSet<Var>,
}

/// Where a statement stands.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Inside {
    Uniform,
    Lanes,
    Reduce,
}

/// Checks a whole function.
///
/// # Errors
/// The first defect found.
pub fn verify(func: &Func) -> Result<(), LoopError> {
    let mut c = Checker { func, live: HashSet::new(), defined: HashSet::new() };
    c.block(&func.body, Inside::Uniform)
}

impl Checker<'_> {
    fn fail<T>(&self, message: impl Into<String>) -> Result<T, LoopError> {
        Err(LoopError { func: self.func.name.clone(), message: message.into() })
    }

    fn used(&self, v: Var, ty: Ty) -> Result<(), LoopError> {
        if !self.live.contains(&v) {
            return self.fail(format!("{v} is used outside its scope"));
        }
        if self.func.ty(v) != ty {
            return self.fail(format!("{v} is {:?}, not {ty:?}", self.func.ty(v)));
        }
        Ok(())
    }

    fn define(&mut self, v: Var, ty: Ty) -> Result<(), LoopError> {
        if !self.defined.insert(v) {
            return self.fail(format!("{v} is defined twice"));
        }
        if self.func.types.get(v.0 as usize) != Some(&ty) {
            return self.fail(format!("{v} is not declared as {ty:?}"));
        }
        self.live.insert(v);
        Ok(())
    }

    fn place(&self, place: Place) -> Result<(), LoopError> {
        let ok = match place {
            Place::Param(i) => (i as usize) < self.func.params.len(),
            Place::Scratch(i) => (i as usize) < self.func.scratch.len(),
        };
        if ok { Ok(()) } else { self.fail(format!("there is no {place}")) }
    }

    fn inst(&self, inst: &Inst) -> Result<Ty, LoopError> {
        match *inst {
            Inst::ConstI(_) | Inst::Dim(_) | Inst::RowBegin | Inst::RowCount => Ok(Ty::I),
            Inst::ConstF(_) => Ok(Ty::F),
            Inst::I(_, a, b) => self.used(a, Ty::I).and(self.used(b, Ty::I)).map(|()| Ty::I),
            Inst::F(_, a, b) => self.used(a, Ty::F).and(self.used(b, Ty::F)).map(|()| Ty::F),
            Inst::Fma(a, b, c) => self.used(a, Ty::F).and(self.used(b, Ty::F)).and(self.used(c, Ty::F)).map(|()| Ty::F),
            Inst::U(_, a) => self.used(a, Ty::F).map(|()| Ty::F),
            Inst::Cmp(_, a, b) => {
                let ty = self.func.ty(a);
                self.used(a, ty).and(self.used(b, ty)).map(|()| Ty::B)
            }
            Inst::And(a, b) | Inst::Or(a, b) => self.used(a, Ty::B).and(self.used(b, Ty::B)).map(|()| Ty::B),
            Inst::Not(a) => self.used(a, Ty::B).map(|()| Ty::B),
            Inst::Select(c, a, b) => {
                let ty = self.func.ty(a);
                self.used(c, Ty::B).and(self.used(a, ty)).and(self.used(b, ty)).map(|()| ty)
            }
            Inst::IToF(a) | Inst::FromBits(a) => self.used(a, Ty::I).map(|()| Ty::F),
            Inst::FToI(a) | Inst::Bits(a) => self.used(a, Ty::F).map(|()| Ty::I),
            Inst::Load { place, at, mem } => self.place(place).and(self.used(at, Ty::I)).map(|()| mem.ty()),
        }
    }

    fn block(&mut self, stmts: &[Stmt], inside: Inside) -> Result<(), LoopError> {
        let outer = self.live.clone();
        for s in stmts {
            self.stmt(s, inside)?;
        }
        self.live = outer;
        Ok(())
    }

    fn stmt(&mut self, s: &Stmt, inside: Inside) -> Result<(), LoopError> {
        match s {
            Stmt::Let(v, inst) => {
                let ty = self.inst(inst)?;
                self.define(*v, ty)
            }
            Stmt::Store { place, at, mem, value } => {
                if inside == Inside::Reduce {
                    return self.fail("a reduction stores");
                }
                self.place(*place)?;
                self.used(*at, Ty::I)?;
                self.used(*value, mem.ty())
            }
            Stmt::For { var, lo, hi, carries, body } => {
                self.used(*lo, Ty::I)?;
                self.used(*hi, Ty::I)?;
                let outer = self.live.clone();
                self.define(*var, Ty::I)?;
                for c in carries {
                    let ty = self.func.ty(c.init);
                    self.used(c.init, ty)?;
                    self.define(c.phi, ty)?;
                }
                for s in body {
                    self.stmt(s, inside)?;
                }
                for c in carries {
                    self.used(c.next, self.func.ty(c.init))?;
                }
                self.live = outer;
                for c in carries {
                    self.define(c.out, self.func.ty(c.init))?;
                }
                Ok(())
            }
            Stmt::Lanes { var, n, body } => {
                if inside != Inside::Uniform {
                    return self.fail("lanes inside lanes");
                }
                self.used(*n, Ty::I)?;
                let outer = self.live.clone();
                self.define(*var, Ty::I)?;
                self.block(body, Inside::Lanes)?;
                self.live = outer;
                Ok(())
            }
            Stmt::Reduce { var, n, body, accs } => {
                if inside != Inside::Uniform {
                    return self.fail("a reduction inside lanes");
                }
                self.used(*n, Ty::I)?;
                let outer = self.live.clone();
                self.define(*var, Ty::I)?;
                for s in body {
                    self.stmt(s, Inside::Reduce)?;
                }
                for a in accs {
                    self.used(a.value, if a.combine == Combine::SumI { Ty::I } else { Ty::F })?;
                }
                self.live = outer;
                for a in accs {
                    self.define(a.out, if a.combine == Combine::SumI { Ty::I } else { Ty::F })?;
                    if let Some(i) = a.out_index {
                        self.define(i, Ty::I)?;
                    }
                }
                Ok(())
            }
            Stmt::If { cond, body } => {
                self.used(*cond, Ty::B)?;
                self.block(body, inside)
            }
            Stmt::Dense { y, y_stride, x, x_stride, w, m, n, k } => {
                if inside != Inside::Uniform {
                    return self.fail("a dense product inside lanes");
                }
                for (place, at) in [y, x, w] {
                    self.place(*place)?;
                    self.used(*at, Ty::I)?;
                }
                [y_stride, x_stride, m, n, k].into_iter().try_for_each(|v| self.used(*v, Ty::I))
            }
        }
    }
}
