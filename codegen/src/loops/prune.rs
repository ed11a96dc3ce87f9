//! Drops values that nothing uses; loads are dropped too, stores never.

use super::{Inst, Stmt, Var};
use std::collections::HashSet;

/// Removes unused definitions from a body.
pub(super) fn prune(body: &mut Vec<Stmt>) {
    block(body, &mut HashSet::new());
}

/// From the last statement to the first, so that uses are known before definitions.
fn block(stmts: &mut Vec<Stmt>, used: &mut HashSet<Var>) {
    let mut kept = Vec::with_capacity(stmts.len());
    while let Some(mut s) = stmts.pop() {
        if keep(&mut s, used) {
            kept.push(s);
        }
    }
    kept.reverse();
    *stmts = kept;
}

/// Whether a statement stays; marks what it uses.
fn keep(s: &mut Stmt, used: &mut HashSet<Var>) -> bool {
    match s {
        Stmt::Let(v, inst) => {
            let needed = used.contains(v);
            if needed {
                used.extend(operands(inst));
            }
            return needed;
        }
        Stmt::Store { at, value, .. } => used.extend([*at, *value]),
        Stmt::For { lo, hi, carries, body, .. } => {
            used.extend(carries.iter().map(|c| c.next));
            block(body, used);
            used.extend([*lo, *hi]);
            used.extend(carries.iter().map(|c| c.init));
        }
        Stmt::Lanes { n, body, .. } => {
            block(body, used);
            used.insert(*n);
        }
        Stmt::Reduce { n, body, accs, .. } => {
            used.extend(accs.iter().map(|a| a.value));
            block(body, used);
            used.insert(*n);
        }
        Stmt::If { cond, body } => {
            block(body, used);
            used.insert(*cond);
        }
        Stmt::Dense { y, y_stride, x, x_stride, w, m, n, k } => {
            used.extend([y.1, *y_stride, x.1, *x_stride, w.1, *m, *n, *k]);
        }
    }
    true
}

fn operands(inst: &Inst) -> Vec<Var> {
    match *inst {
        Inst::ConstI(_) | Inst::ConstF(_) | Inst::Dim(_) | Inst::RowBegin | Inst::RowCount => Vec::new(),
        Inst::I(_, a, b) | Inst::F(_, a, b) | Inst::Cmp(_, a, b) | Inst::And(a, b) | Inst::Or(a, b) => vec![a, b],
        Inst::Fma(a, b, c) | Inst::Select(a, b, c) => vec![a, b, c],
        Inst::U(_, a) | Inst::Not(a) | Inst::IToF(a) | Inst::FToI(a) | Inst::Bits(a) | Inst::FromBits(a) => vec![a],
        Inst::Load { at, .. } => vec![at],
    }
}
