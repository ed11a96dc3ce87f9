//! Bounded replay: in prefill, only the end of each prompt goes through the layers after the last source.
//!
//! ```text
//! all rows        layers before the last source, and that layer's compressed rows and index keys
//! -- narrow --    the stream, the layer's input, its mixes: rows of the tail
//! tail rows       everything else
//! ```
//!
//! The tail is a step of its own: its table says where each sequence's replayed rows start, and that is how far back
//! their windows see. Rings of these layers then hold what decoding reads, and nothing older.

use super::residual::{Mix, Site, Stream};
use super::{Lowerer, Made};
use dsc_ir::dtype::DType;
use dsc_ir::expr::{Expr, Sym};
use dsc_ir::graph::{Def, TensorType, TypeError, ValueId};
use dsc_ir::op;

impl Lowerer<'_> {
    /// Goes on with the tail's rows: of the stream, of a sublayer that was entered, of the step table.
    pub(super) fn narrow(&mut self, stream: &mut Stream, site: &mut Site) -> Result<(), TypeError> {
        let n = Expr::Sym(Sym::TailRows);
        let rows_type = TensorType::new(DType::I32, [n.clone()]);
        let rows = self.graph.add_value("tail_rows", None, rows_type, Def::Input);
        let step_type = TensorType::new(DType::I32, [n, op::step::COLUMNS.into()]);
        self.step = self.graph.add_value("tail_step", None, step_type, Def::Input);
        self.tail_rows = Some(rows);
        stream.x = self.take_tail(stream.x, rows)?;
        if let Some(pre) = stream.pre {
            stream.pre = Some(self.take_tail(pre, rows)?);
        }
        site.input = self.take_tail(site.input, rows)?;
        if let Some(m) = site.mix.take() {
            // A mix that the next collapse uses is the stream's by now; the one of this site was used.
            site.mix =
                Some(Mix { pre: m.pre, post: self.take_tail(m.post, rows)?, comb: self.take_tail(m.comb, rows)? });
        }
        Ok(())
    }

    /// The tail's rows of a value, under a name of their own.
    fn take_tail(&mut self, v: ValueId, rows: ValueId) -> Made {
        let value = self.graph.value(v);
        let (name, dtype) = (format!("{}.tail", value.name), value.ty.dtype);
        self.one(op::TakeRows {}, &[v, rows], &name, dtype)
    }

    /// A value with rows of the step, narrowed to the tail where only that goes on; once for each value.
    pub(super) fn of_tail(&mut self, v: ValueId) -> Made {
        let Some(rows) = self.tail_rows else { return Ok(v) };
        if self.graph.ty(v).shape.first() != Some(&Expr::tokens()) {
            return Ok(v);
        }
        if let Some(taken) = self.taken.get(&v) {
            return Ok(*taken);
        }
        let taken = self.take_tail(v, rows)?;
        self.taken.insert(v, taken);
        Ok(taken)
    }

    /// Lowers something for every row of the step, also where only the tail goes on.
    pub(super) fn with_all_rows<T>(&mut self, f: impl FnOnce(&mut Self) -> T) -> T {
        let step = std::mem::replace(&mut self.step, self.all_step);
        let made = f(self);
        self.step = step;
        made
    }
}
