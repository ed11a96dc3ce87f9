//! The printed form of loop programs, for people and snapshots.

use super::{Func, Inst, Place, Stmt, Var};
use std::fmt::{self, Display, Formatter};

impl Display for Var {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "v{}", self.0)
    }
}

impl Display for Place {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Place::Param(i) => write!(f, "p{i}"),
            Place::Scratch(i) => write!(f, "s{i}"),
        }
    }
}

impl Display for Inst {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Inst::ConstI(c) => write!(f, "{c}"),
            Inst::ConstF(c) => write!(f, "{c:?}"),
            Inst::Dim(s) => f.write_str(s.name()),
            Inst::RowBegin => f.write_str("row_begin"),
            Inst::RowCount => f.write_str("row_count"),
            Inst::I(op, a, b) => write!(f, "i{} {a}, {b}", lower(op)),
            Inst::F(op, a, b) => write!(f, "f{} {a}, {b}", lower(op)),
            Inst::Fma(a, b, c) => write!(f, "fma {a}, {b}, {c}"),
            Inst::U(op, a) => write!(f, "{} {a}", lower(op)),
            Inst::Cmp(op, a, b) => write!(f, "cmp.{} {a}, {b}", lower(op)),
            Inst::And(a, b) => write!(f, "and {a}, {b}"),
            Inst::Or(a, b) => write!(f, "or {a}, {b}"),
            Inst::Not(a) => write!(f, "not {a}"),
            Inst::Select(c, a, b) => write!(f, "select {c}, {a}, {b}"),
            Inst::IToF(a) => write!(f, "itof {a}"),
            Inst::FToI(a) => write!(f, "ftoi {a}"),
            Inst::Bits(a) => write!(f, "bits {a}"),
            Inst::FromBits(a) => write!(f, "from_bits {a}"),
            Inst::Load { place, at, mem } => write!(f, "load.{} {place}[{at}]", lower(mem)),
        }
    }
}

fn lower(x: &impl fmt::Debug) -> String {
    format!("{x:?}").to_lowercase()
}

fn block(f: &mut Formatter<'_>, stmts: &[Stmt], depth: usize) -> fmt::Result {
    let pad = "  ".repeat(depth);
    for s in stmts {
        match s {
            Stmt::Let(v, inst) => writeln!(f, "{pad}{v} = {inst}")?,
            Stmt::Store { place, at, mem, value } => writeln!(f, "{pad}store.{} {place}[{at}], {value}", lower(mem))?,
            Stmt::For { var, lo, hi, carries, body } => {
                write!(f, "{pad}for {var} in {lo}..{hi}")?;
                for c in carries {
                    write!(f, " carry {} = {} then {} out {}", c.phi, c.init, c.next, c.out)?;
                }
                writeln!(f, " {{")?;
                block(f, body, depth + 1)?;
                writeln!(f, "{pad}}}")?;
            }
            Stmt::Lanes { var, n, body } => {
                writeln!(f, "{pad}lanes {var} in 0..{n} {{")?;
                block(f, body, depth + 1)?;
                writeln!(f, "{pad}}}")?;
            }
            Stmt::Reduce { var, n, body, accs } => {
                writeln!(f, "{pad}reduce {var} in 0..{n} {{")?;
                block(f, body, depth + 1)?;
                for a in accs {
                    write!(f, "{pad}  {} {} to {}", lower(&a.combine), a.value, a.out)?;
                    match a.out_index {
                        Some(i) => writeln!(f, " at {i}")?,
                        None => writeln!(f)?,
                    }
                }
                writeln!(f, "{pad}}}")?;
            }
            Stmt::If { cond, body } => {
                writeln!(f, "{pad}if {cond} {{")?;
                block(f, body, depth + 1)?;
                writeln!(f, "{pad}}}")?;
            }
            Stmt::Dense { y, y_stride, x, x_stride, w, m, n, k } => writeln!(
                f,
                "{pad}dense {}[{}] by {y_stride}, {}[{}] by {x_stride}, {}[{}], {m} x {n} x {k}",
                y.0, y.1, x.0, x.1, w.0, w.1
            )?,
        }
    }
    Ok(())
}

impl Display for Func {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        writeln!(f, "func {} rows {} {{", self.name, self.row_block)?;
        for (i, p) in self.params.iter().enumerate() {
            writeln!(f, "  p{i}: {}{}", if p.written { "mut " } else { "" }, p.name)?;
        }
        for (i, s) in self.scratch.iter().enumerate() {
            writeln!(f, "  s{i}: {} bytes {}", s.bytes, s.name)?;
        }
        block(f, &self.body, 1)?;
        writeln!(f, "}}")
    }
}
