//! What lowering knows of the kernel: where its values live, scratch, and the loops that every op uses.

use super::codec::Tables;
use super::slice::Slice;
use super::view::{At, Coding, Line, View};
use super::{LowerError, LowerOptions};
use crate::loops::{Builder, Func, IOp, Mem, Param, Place, Var};
use dsc_ir::graph::{Def, Node, NodeId, ValueId};
use dsc_ir::kernel::Kernel;
use dsc_ir::op::Op;

/// The state of lowering one kernel.
pub struct Cx<'k> {
    /// The program so far.
    pub b: Builder,
    /// Shape of the loops.
    pub flow: Flow,
    kernel: &'k Kernel,
    row_block: u64,
    row_begin: Var,
    row_count: Var,
    locals: Vec<Option<(u64, Place)>>,
    last_use: Vec<Option<NodeId>>,
    scratch: ScratchPool,
    temporaries: Vec<(u64, Place)>,
    /// Values whose memory another one took.
    replaced: Vec<ValueId>,
    /// Scratch of [`Cx::sums`].
    sums: Option<Place>,
    slice: Option<Slice>,
    /// Areas that a slice still reads when its loop comes round.
    held: Vec<(u64, Place)>,
}

/// Scratch areas that may be used again.
#[derive(Default)]
struct ScratchPool {
    free: Vec<(u64, Place)>,
    /// Whether an area that is too small may be made larger: where memory is short, better than a new one.
    grows: bool,
}

impl ScratchPool {
    /// The smallest free area that is large enough, or a new one.
    fn take(&mut self, b: &mut Builder, name: &str, bytes: u64) -> (u64, Place) {
        let fits = self.free.iter().enumerate().filter(|(_, (size, _))| *size >= bytes);
        match fits.min_by_key(|(_, (size, _))| *size).map(|(i, _)| i) {
            Some(i) => self.free.remove(i),
            None => self.grown(b, bytes).unwrap_or_else(|| (bytes, b.scratch(name, bytes))),
        }
    }

    /// The largest free area, made large enough.
    fn grown(&mut self, b: &mut Builder, bytes: u64) -> Option<(u64, Place)> {
        let largest = self.free.iter().enumerate().max_by_key(|(_, (size, _))| *size).map(|(i, _)| i);
        let (_, place) = self.free.remove(largest.filter(|_| self.grows)?);
        b.grow(place, bytes);
        Some((bytes, place))
    }
}

impl<'k> Cx<'k> {
    /// Before the first op, for ops in this order.
    pub fn new(kernel: &'k Kernel, symbol: &str, opts: &LowerOptions, order: impl Iterator<Item = NodeId>) -> Cx<'k> {
        let name = |v: ValueId| kernel.graph.value(v).name.clone();
        let params = kernel.params.iter().map(|p| Param { name: name(p.value), written: false }).collect();
        let mut b = Builder::new(symbol, params, opts.row_block.max(1));
        let (row_begin, row_count) = (b.row_begin(), b.row_count());
        let mut cx = Cx {
            b,
            flow: Flow { dense: opts.dense, tables: Tables::default() },
            kernel,
            row_block: opts.row_block.max(1),
            row_begin,
            row_count,
            locals: vec![None; kernel.graph.values.len()],
            last_use: vec![None; kernel.graph.values.len()],
            scratch: ScratchPool { free: Vec::new(), grows: !opts.dense },
            temporaries: Vec::new(),
            replaced: Vec::new(),
            sums: None,
            slice: None,
            held: Vec::new(),
        };
        for id in order {
            let node = kernel.graph.node(id);
            for v in node.inputs.iter().chain(&node.outputs) {
                cx.last_use[v.idx()] = Some(id);
            }
        }
        cx
    }

    /// The finished program.
    pub fn finish(self) -> Func {
        self.b.finish()
    }

    /// An error in this kernel.
    pub fn fail<T>(&self, message: impl Into<String>) -> Result<T, LowerError> {
        Err(LowerError { kernel: self.kernel.name.clone(), message: message.into() })
    }

    /// Gives the outputs of a node their memory.
    pub fn begin(&mut self, id: NodeId) -> Result<(), LowerError> {
        for v in &self.kernel.graph.node(id).outputs {
            let value = self.kernel.graph.value(*v);
            if value.ty.shape.first() != Some(&self.kernel.rows) {
                return self.fail(format!("`{}` does not have the kernel's {} rows", value.name, self.kernel.rows));
            }
            if self.kernel.param_index(*v).is_some() {
                continue;
            }
            let view = View::rows(Place::Scratch(0), &value.ty, true).map(|view| self.sliced(*v, view));
            let bytes = view.and_then(|view| view.row_bytes());
            let Some(bytes) = bytes else {
                return self.fail(format!("`{}` has rows of symbolic size and must be a parameter", value.name));
            };
            if let Some(from) = self.replaceable(id, *v) {
                self.locals[v.idx()] = self.locals[from.idx()];
                self.replaced.push(from);
                continue;
            }
            let (size, place) = self.scratch.take(&mut self.b, &value.name, bytes * self.row_block);
            self.locals[v.idx()] = Some((size, place));
            if self.last_use[v.idx()] == Some(id) {
                self.temporaries.push((size, place));
            }
        }
        Ok(())
    }

    /// An operand that dies here and whose memory the result of an elementwise op may take, element by element.
    fn replaceable(&self, id: NodeId, out: ValueId) -> Option<ValueId> {
        let (graph, node) = (&self.kernel.graph, self.kernel.graph.node(id));
        let inside = |v: &ValueId| self.slice.as_ref().is_none_or(|slice| slice.makes(*v));
        let fits = |v: &&ValueId| {
            let dies = self.locals[v.idx()].is_some() && self.last_use[v.idx()] == Some(id) && inside(v);
            dies && graph.ty(**v) == graph.ty(out)
        };
        let elementwise = !self.flow.dense && matches!(node.op, Op::SwiGlu(_) | Op::Add(_));
        node.inputs.iter().filter(|_| elementwise).find(fits).copied()
    }

    /// Takes back the memory of values that are dead after a node, and its temporaries.
    pub fn end(&mut self, id: NodeId) {
        self.scratch.free.append(&mut self.temporaries);
        let node = self.kernel.graph.node(id);
        for v in &node.inputs {
            if self.last_use[v.idx()] == Some(id)
                && let Some(area) = self.locals[v.idx()].take()
                && !self.replaced.contains(v)
            {
                match &self.slice {
                    Some(slice) if !slice.makes(*v) => self.held.push(area),
                    _ => self.scratch.free.push(area),
                }
            }
        }
    }

    /// From here on, values of the slice are `slice.lines` lines long.
    pub fn open_slice(&mut self, slice: Slice) {
        self.slice = Some(slice);
    }

    /// Ends the slice and takes back what only it read.
    pub fn close_slice(&mut self) {
        self.slice = None;
        self.scratch.free.append(&mut self.held);
    }

    /// The slice that is open.
    pub fn slice(&self) -> Option<&Slice> {
        self.slice.as_ref()
    }

    /// Number in the row of line `i`, counted from the first line of the slice that is open.
    pub fn line_number(&self) -> impl Fn(&mut Builder, Var) -> Var + Copy + use<> {
        let first = self.slice.as_ref().map(|slice| slice.first);
        move |b, i| first.map_or(i, |first| b.iadd(first, i))
    }

    /// A view of all lines of a row, or of those of the slice that is open.
    fn sliced(&self, v: ValueId, view: View) -> View {
        match &self.slice {
            Some(slice) if slice.makes(v) && view.local => view.with_lines(slice.lines),
            Some(slice) if slice.cuts(v) => view.slice(slice.first, slice.lines),
            _ => view,
        }
    }

    /// Takes back the memory of a value ahead of its last use.
    pub fn drop_value(&mut self, v: ValueId) {
        self.scratch.free.extend(self.locals[v.idx()].take());
    }

    /// Scratch that stays until [`Cx::release`].
    pub fn reserve(&mut self, name: &str, bytes: u64) -> (u64, Place) {
        self.scratch.take(&mut self.b, name, bytes)
    }

    /// Takes back what [`Cx::reserve`] gave.
    pub fn release(&mut self, area: (u64, Place)) {
        self.scratch.free.push(area);
    }

    /// Scratch for the current op, `bytes` large.
    pub fn temporary(&mut self, name: &str, bytes: u64) -> Place {
        let (size, place) = self.scratch.take(&mut self.b, name, bytes);
        self.temporaries.push((size, place));
        place
    }

    /// Scratch for `lines` lines of f32 for the current op.
    pub fn panel(&mut self, name: &str, lines: u64, channels: u64) -> View {
        let place = self.temporary(name, lines * channels * 4);
        View::panel(place, channels)
    }

    /// Lines of f32 that products use one after the other: one area for all, since values of other sizes that take
    /// its place would leave it too small for the next product.
    pub fn sums(&mut self, lines: u64, channels: u64) -> View {
        let bytes = lines * channels * 4;
        let place = *self.sums.get_or_insert_with(|| self.b.scratch("sums", bytes));
        self.b.grow(place, bytes);
        View::panel(place, channels)
    }

    /// Loops that decode values of a view to panels; on a CPU by a table, filled here on first use.
    pub fn decoder(&mut self, view: &View) -> Flow {
        if self.flow.dense {
            let tables = &mut self.flow.tables;
            match view.codec.coding {
                Coding::E4m3 { .. } if tables.e4m3.is_none() => {
                    let table = self.b.scratch("e4m3", Tables::E4M3_BYTES);
                    Tables::fill_e4m3(&mut self.b, table);
                    tables.e4m3 = Some(table);
                }
                Coding::E2m1 { .. } if tables.e2m1.is_none() => {
                    let table = self.b.scratch("e2m1", Tables::E2M1_BYTES);
                    Tables::fill_e2m1(&mut self.b, table);
                    tables.e2m1 = Some(table);
                }
                Coding::E4m3 { .. } | Coding::E2m1 { .. } | Coding::Plain(_) => {}
            }
        }
        self.flow
    }

    /// Most rows of a block.
    pub fn row_block(&self) -> u64 {
        self.row_block
    }

    /// Rows in this block.
    pub fn row_count(&self) -> Var {
        self.row_count
    }

    /// First row of this block.
    pub fn row_begin(&self) -> Var {
        self.row_begin
    }

    /// The memory of a value.
    pub fn view(&self, v: ValueId) -> Result<View, LowerError> {
        let value = self.kernel.graph.value(v);
        let param = self.kernel.param_index(v).map(|i| Place::Param(i as u32));
        let Some(place) = param.or(self.locals[v.idx()].map(|(_, place)| place)) else {
            return self.fail(format!("`{}` is neither a parameter nor computed before its use", value.name));
        };
        let view = match value.def {
            Def::Weight(_) => Some(View::weight(place, &value.ty)),
            Def::State(_) => Some(View::state(place, &value.ty)),
            Def::Input | Def::Node { .. } => {
                View::rows(place, &value.ty, param.is_none()).map(|view| self.sliced(v, view))
            }
        };
        match view {
            Some(view) => Ok(view),
            None => self.fail(format!("`{}` has an inner axis of symbolic size", value.name)),
        }
    }

    /// The memory of operand `i`.
    pub fn input(&self, n: &Node, i: usize) -> Result<View, LowerError> {
        match n.inputs.get(i) {
            Some(v) => self.view(*v),
            None => self.fail(format!("`{}` lacks operand {i}", n.op.name())),
        }
    }

    /// The memory of result `i`.
    pub fn output(&self, n: &Node, i: usize) -> Result<View, LowerError> {
        match n.outputs.get(i) {
            Some(v) => self.view(*v),
            None => self.fail(format!("`{}` lacks result {i}", n.op.name())),
        }
    }

    /// Size of axis `axis` of operand `i`.
    pub fn size(&mut self, n: &Node, i: usize, axis: usize) -> Result<Var, LowerError> {
        let e = n.inputs.get(i).and_then(|v| self.kernel.graph.ty(*v).shape.get(axis));
        match e {
            Some(e) => Ok(self.b.size(e)),
            None => self.fail(format!("`{}` lacks axis {axis} of operand {i}", n.op.name())),
        }
    }

    /// Constant sizes of the axes of operand `i`; 0 for symbolic ones.
    pub fn shape(&self, n: &Node, i: usize) -> Vec<u64> {
        let ty = n.inputs.get(i).map(|v| self.kernel.graph.ty(*v));
        ty.map(|ty| ty.shape.iter().map(|e| e.as_const().unwrap_or(0)).collect()).unwrap_or_default()
    }

    /// Runs `f` for every row of the block.
    pub fn rows(&mut self, f: impl FnOnce(&mut Builder, At)) {
        let begin = self.row_begin;
        let zero = self.b.int(0);
        if self.row_block == 1 {
            f(&mut self.b, At { in_block: zero, row: begin });
        } else {
            self.b.for_(zero, self.row_count, |b, in_block| {
                let row = b.iadd(begin, in_block);
                f(b, At { in_block, row });
            });
        }
    }
}

/// Loops in the shape that suits the backend.
#[derive(Debug, Clone, Copy)]
pub struct Flow {
    /// Whether lanes run one after the other and the dense micro-kernel exists.
    pub dense: bool,
    /// Tables that exist.
    tables: Tables,
}

impl Flow {
    /// Neighbouring channels that one lane does at once, so that their sums do not wait for each other; one
    /// where lanes run side by side.
    pub fn strip(self, channels: u64) -> u64 {
        let widths: &[u64] = if self.dense { &[8, 4, 2] } else { &[] };
        widths.iter().copied().find(|w| channels.is_multiple_of(*w)).unwrap_or(1)
    }

    /// Independent iterations over `outer x inner`; `ahead` computes what depends on the outer index alone.
    pub fn grid<S>(
        self,
        b: &mut Builder,
        outer: Var,
        inner: Var,
        ahead: impl FnOnce(&mut Builder, Var) -> S,
        f: impl FnOnce(&mut Builder, &S, Var),
    ) {
        if b.known(outer) == Some(1) {
            let zero = b.int(0);
            let s = ahead(b, zero);
            b.lanes(inner, |b, j| f(b, &s, j));
        } else if self.dense {
            let zero = b.int(0);
            b.for_(zero, outer, |b, i| {
                let s = ahead(b, i);
                b.lanes(inner, |b, j| f(b, &s, j));
            });
        } else {
            let n = b.imul(outer, inner);
            b.lanes(n, |b, l| {
                let i = b.i(IOp::Div, l, inner);
                let j = b.i(IOp::Rem, l, inner);
                let s = ahead(b, i);
                f(b, &s, j);
            });
        }
    }

    /// Decodes `n` lines of `view`'s codec to consecutive f32 lines of `panel`, from its line `first` on.
    /// `line` gives each line, and perhaps whether it exists; one that does not reads as zeros.
    pub fn decode(
        self,
        b: &mut Builder,
        view: &View,
        n: Var,
        line: impl Fn(&mut Builder, Var) -> (Line, Option<Var>),
        panel: &View,
        first: Var,
    ) {
        for part in view.codec.parts(view.channels) {
            let run = [8, 4, 2, 1].into_iter().find(|run| part.channels.is_multiple_of(*run)).unwrap_or(1);
            let runs = b.int(part.channels / run);
            let target = |b: &mut Builder, i: Var| {
                let i = b.iadd(first, i);
                panel.line(b, i)
            };
            self.grid(
                b,
                n,
                runs,
                |b, i| (line(b, i), target(b, i)),
                |b, ((source, exists), target), j| {
                    let j = b.imul_c(j, run as i64);
                    let values = if run == 1 {
                        let channel = b.iadd_c(j, part.first as i64);
                        vec![source.load(b, channel)]
                    } else {
                        source.load_run(b, &part, j, run, &self.tables)
                    };
                    let to = b.iadd_c(j, part.first as i64);
                    for (i, value) in values.into_iter().enumerate() {
                        let value = existing(b, *exists, value);
                        let to = b.iadd_c(to, i as i64);
                        target.store(b, to, value);
                    }
                },
            );
        }
    }

    /// `y[i, j] = x_i . w_j` over f32 lines: `m` rows of `x` by `n` of `w`, `k` channels.
    pub fn dot(self, b: &mut Builder, y: Matrix, x: Matrix, w: (Place, Var), [m, n, k]: [Var; 3]) {
        if self.dense {
            b.dense((y.place, y.at), y.stride, (x.place, x.at), x.stride, w, [m, n, k]);
            return;
        }
        let line = |b: &mut Builder, matrix: Matrix, i: Var| {
            let at = b.imul(i, matrix.stride);
            b.iadd(matrix.at, at)
        };
        self.grid(
            b,
            m,
            n,
            |b, i| (line(b, x, i), line(b, y, i)),
            |b, (x_at, y_at), j| {
                let w_stride = b.imul_c(k, 4);
                let w_at = line(b, Matrix { place: w.0, at: w.1, stride: w_stride }, j);
                let zero = b.float(0.0);
                let lo = b.int(0);
                let [sum] = b.fold_(lo, k, [zero], |b, c, [acc]| {
                    let offset = b.imul_c(c, 4);
                    let (xa, wa) = (b.iadd(*x_at, offset), b.iadd(w_at, offset));
                    let (xv, wv) = (b.load(x.place, xa, Mem::F32), b.load(w.0, wa, Mem::F32));
                    let product = b.fmul(xv, wv);
                    [b.fadd(acc, product)]
                });
                let offset = b.imul_c(j, 4);
                let to = b.iadd(*y_at, offset);
                b.store(y.place, to, Mem::F32, sum);
            },
        );
    }
}

fn existing(b: &mut Builder, exists: Option<Var>, value: Var) -> Var {
    match exists {
        Some(exists) => {
            let zero = b.float(0.0);
            b.select(exists, value, zero)
        }
        None => value,
    }
}

/// An f32 matrix in memory.
#[derive(Debug, Clone, Copy)]
pub struct Matrix {
    /// Memory.
    pub place: Place,
    /// Byte address of the first element.
    pub at: Var,
    /// Bytes from one row to the next.
    pub stride: Var,
}
