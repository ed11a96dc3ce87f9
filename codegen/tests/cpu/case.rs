//! Builds a graph with random operands, runs it every way, and compares.

use crate::jit::{Buffer, Compiled, compile};
use dsc_codegen::lower::{LowerOptions, lower};
use dsc_ir::dtype::DType;
use dsc_ir::expr::{Env, Expr};
use dsc_ir::graph::{Def, Graph, Shard, StateKind, TensorType, ValueId, WeightSource};
use dsc_ir::interp::{self, Array, Values};
use dsc_ir::kernel::{Anchor, Kernel, Param, Role};
use dsc_ir::op::Op;

/// A run of rows of one sequence.
#[derive(Clone, Copy)]
pub struct Run {
    pub seq: u64,
    pub start: u64,
    pub len: u64,
}

pub fn run(seq: u64, start: u64, len: u64) -> Run {
    Run { seq, start, len }
}

pub struct Case {
    pub graph: Graph,
    pub values: Values,
    pub env: Env,
    pub rows: Expr,
    pub steps: ValueId,
    /// Results of the kernel when values stay inside; all others become locals.
    pub keep: Vec<ValueId>,
    /// Slack in units of the largest value of a result.
    pub relative: f32,
    state: u64,
}

pub fn tokens() -> Expr {
    Expr::tokens()
}

/// `[n_tokens, ..inner]`.
pub fn rows_of(inner: &[u64]) -> Vec<Expr> {
    std::iter::once(tokens()).chain(inner.iter().map(|c| Expr::Const(*c))).collect()
}

impl Case {
    pub fn new(runs: &[Run]) -> Case {
        Case::with(runs, 64, &[])
    }

    /// A step of these runs; `images` lists rows of image spans.
    pub fn with(runs: &[Run], n_context: u64, images: &[usize]) -> Case {
        let n: u64 = runs.iter().map(|r| r.len).sum();
        let n_seqs = runs.iter().map(|r| r.seq + 1).max().unwrap_or(1);
        let env = Env { n_tokens: n, n_seqs, n_context, n_out_rows: 3, n_tail_rows: 2 };
        let mut case = Case {
            graph: Graph::new("test"),
            values: Values::new(),
            env,
            rows: tokens(),
            steps: ValueId(0),
            keep: Vec::new(),
            relative: 0.0,
            state: 0x9E37_79B9_7F4A_7C15,
        };
        let mut table = Vec::new();
        for r in runs {
            let row0 = (table.len() / 8) as u64;
            for i in 0..r.len {
                let t = table.len() / 8;
                let id = (t as u64 * 7 + 3) % 13;
                let image = u64::from(images.contains(&t));
                let row = [id, r.start + i, r.seq, r.start, row0, r.start + r.len, image, 0];
                table.extend(row.map(|x| x as i32));
            }
        }
        case.steps = case.ints("step", rows_of(&[8]), table);
        case
    }

    /// Starts another sequence of random numbers.
    pub fn reseed(&mut self, seed: u64) {
        self.state = self.state.wrapping_add(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15));
        self.random();
    }

    /// A random number below `n`.
    pub fn below(&mut self, n: usize) -> usize {
        (((self.random() + 1.0) / 2.0 * n as f32) as usize).min(n - 1)
    }

    pub fn random(&mut self) -> f32 {
        self.state = self.state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        let x = (self.state >> 40) as f32 / (1u64 << 24) as f32;
        2.0 * x - 1.0
    }

    pub fn randoms(&mut self, n: usize) -> Vec<f32> {
        (0..n).map(|_| self.random()).collect()
    }

    fn add(&mut self, name: &str, dtype: DType, shape: Vec<Expr>, def: Def) -> (ValueId, Vec<usize>) {
        let sizes = shape.iter().map(|e| e.eval(&self.env) as usize).collect();
        (self.graph.add_value(name, None, TensorType::new(dtype, shape), def), sizes)
    }

    fn put(&mut self, name: &str, dtype: DType, shape: Vec<Expr>, def: Def, data: Option<Vec<f32>>) -> ValueId {
        let (v, sizes) = self.add(name, dtype, shape, def);
        let data = data.unwrap_or_else(|| self.randoms(sizes.iter().product()));
        self.values.insert(v, Array::from_floats(dtype, &sizes, data).unwrap());
        v
    }

    /// A random input with a row per token.
    pub fn input(&mut self, name: &str, dtype: DType, inner: &[u64]) -> ValueId {
        self.put(name, dtype, rows_of(inner), Def::Input, None)
    }

    pub fn input_of(&mut self, name: &str, dtype: DType, inner: &[u64], data: Vec<f32>) -> ValueId {
        self.put(name, dtype, rows_of(inner), Def::Input, Some(data))
    }

    pub fn input_shaped(&mut self, name: &str, dtype: DType, shape: Vec<Expr>, data: Vec<f32>) -> ValueId {
        self.put(name, dtype, shape, Def::Input, Some(data))
    }

    pub fn ints(&mut self, name: &str, shape: Vec<Expr>, data: Vec<i32>) -> ValueId {
        let (v, sizes) = self.add(name, DType::I32, shape, Def::Input);
        self.values.insert(v, Array::i32(&sizes, data));
        v
    }

    fn weight_def(name: &str) -> Def {
        Def::Weight(WeightSource { tensor: name.into(), shard: Shard::None })
    }

    pub fn weight(&mut self, name: &str, dtype: DType, shape: &[u64]) -> ValueId {
        let shape = shape.iter().map(|c| Expr::Const(*c)).collect();
        self.put(name, dtype, shape, Case::weight_def(name), None)
    }

    pub fn weight_of(&mut self, name: &str, shape: &[u64], data: Vec<f32>) -> ValueId {
        let shape = shape.iter().map(|c| Expr::Const(*c)).collect();
        self.put(name, DType::F32, shape, Case::weight_def(name), Some(data))
    }

    pub fn int_weight(&mut self, name: &str, shape: &[u64], data: Vec<i32>) -> ValueId {
        let shape = shape.iter().map(|c| Expr::Const(*c)).collect();
        let (v, sizes) = self.add(name, DType::I32, shape, Case::weight_def(name));
        self.values.insert(v, Array::i32(&sizes, data));
        v
    }

    pub fn ring(&mut self, name: &str, dtype: DType, slots: u64, c: u64) -> ValueId {
        let shape = vec![Expr::Sym(dsc_ir::expr::Sym::Seqs), slots.into(), c.into()];
        let def = Def::State(StateKind::Ring { keep: slots });
        if dtype == DType::I32 {
            let (v, sizes) = self.add(name, dtype, shape, def);
            let data = (0..sizes.iter().product::<usize>()).map(|i| (i as i32 * 5) % 11 - 1).collect();
            self.values.insert(v, Array::i32(&sizes, data));
            return v;
        }
        self.put(name, dtype, shape, def, None)
    }

    pub fn pages(&mut self, name: &str, dtype: DType, ratio: u32, c: u64) -> ValueId {
        let entries = Expr::Sym(dsc_ir::expr::Sym::Context).ceil_div(u64::from(ratio));
        let shape = vec![Expr::Sym(dsc_ir::expr::Sym::Seqs), entries, c.into()];
        self.put(name, dtype, shape, Def::State(StateKind::Pages { ratio }), None)
    }

    pub fn op(&mut self, op: impl Into<Op>, inputs: &[ValueId], outputs: &[(&str, DType)]) -> Vec<ValueId> {
        let out = self.graph.add(op, None, inputs, outputs).unwrap();
        self.keep = out.clone();
        out
    }

    /// The kernel of the graph with these results.
    pub fn kernel(&self, results: &[ValueId]) -> Kernel {
        let mut graph = self.graph.clone();
        graph.results = results.to_vec();
        let written: Vec<ValueId> = graph.nodes.iter().filter(|n| n.op.writes_state()).map(|n| n.inputs[0]).collect();
        let mut params = Vec::new();
        for v in graph.value_ids() {
            let role = match &graph.value(v).def {
                Def::Input => Role::Input,
                Def::Weight(_) => Role::Weight,
                Def::State(_) if written.contains(&v) => Role::StateOut,
                Def::State(_) => Role::State,
                Def::Node { .. } if results.contains(&v) => Role::Output,
                Def::Node { .. } => continue,
            };
            params.push(Param { value: v, role });
        }
        Kernel { name: "test".into(), anchor: Anchor::Row, rows: self.rows.clone(), graph, params }
    }

    pub fn all_results(&self) -> Vec<ValueId> {
        self.graph.nodes.iter().flat_map(|n| n.outputs.clone()).collect()
    }

    /// Runs a kernel over these splits of the rows and returns what it wrote.
    pub fn execute(&self, kernel: &Kernel, opts: &LowerOptions, splits: &[(u64, u64)]) -> Values {
        let func = lower(kernel, "dsc_test", opts).unwrap();
        let compiled: Compiled = compile(&func);
        let mut buffers: Vec<Buffer> = self.contents(kernel).iter().map(|bytes| Buffer::of(bytes)).collect();
        for (begin, end) in splits {
            compiled.run(&mut buffers, &self.env, *begin, *end);
        }
        let bytes: Vec<Vec<u8>> = buffers.iter().map(Buffer::bytes).collect();
        self.written(kernel, &bytes)
    }

    /// What the parameters of a kernel hold before it runs.
    pub fn contents(&self, kernel: &Kernel) -> Vec<Vec<u8>> {
        let one = |p: &Param| {
            let n = kernel.graph.ty(p.value).bytes().eval(&self.env) as usize;
            let bytes = self.values.get(&p.value).map_or_else(|| vec![0xA5; n], Array::to_storage);
            assert_eq!(bytes.len(), n, "size of a parameter");
            bytes
        };
        kernel.params.iter().map(one).collect()
    }

    /// What a kernel wrote, from what its parameters hold afterwards.
    pub fn written(&self, kernel: &Kernel, buffers: &[Vec<u8>]) -> Values {
        let mut out = Values::new();
        for (p, bytes) in kernel.params.iter().zip(buffers) {
            if matches!(p.role, Role::Output | Role::StateOut) {
                let ty = kernel.graph.ty(p.value);
                let shape: Vec<usize> = ty.shape.iter().map(|e| e.eval(&self.env) as usize).collect();
                out.insert(p.value, Array::from_storage(ty.dtype, &shape, bytes).unwrap());
            }
        }
        out
    }

    /// Rows of the kernel.
    pub fn n_rows(&self) -> u64 {
        self.rows.eval(&self.env)
    }

    /// Checks every node against the interpreter on the kernel's own operands, within one unit of the result's
    /// dtype and `slack`; then that row blocks, splits and locals change no bit.
    pub fn check(&self, slack: f32) {
        let n = self.n_rows();
        let all = self.kernel(&self.all_results());
        let dense = LowerOptions::cpu;
        let base = self.execute(&all, &dense(4), &[(0, n)]);
        self.against_interpreter(&base, slack);
        let single: Vec<(u64, u64)> = (0..n).map(|r| (r, r + 1)).collect();
        let half = n / 2;
        let ways: [(u64, &[(u64, u64)]); 4] =
            [(1, &[(0, n)]), (3, &[(half, n), (0, half)]), (64, &[(0, n)]), (4, &single)];
        for (row_block, splits) in ways {
            let other = self.execute(&all, &dense(row_block), splits);
            same(&self.graph, &base, &other, &format!("row block {row_block}"));
        }
        self.check_lanes(&all, slack);
        let kept = self.kernel(&self.keep);
        if lower(&kept, "dsc_test", &dense(4)).is_ok() {
            let fused = self.execute(&kept, &dense(4), &[(0, n)]);
            same(&self.graph, &base, &fused, "fused");
            let lanes = self.execute(&all, &LowerOptions::lanes(None), &[(0, n)]);
            for limit in [None, Some(0)] {
                let fused = self.execute(&kept, &LowerOptions::lanes(limit), &[(0, n)]);
                same(&self.graph, &lanes, &fused, "fused lanes");
            }
        }
    }

    /// The same without the dense micro-kernel, with much scratch and with little, which changes no bit.
    fn check_lanes(&self, all: &Kernel, slack: f32) {
        let rows = [(0, self.n_rows())];
        let base = self.execute(all, &LowerOptions::lanes(None), &rows);
        self.against_interpreter(&base, slack);
        let little = LowerOptions::lanes(Some(0));
        same(&self.graph, &base, &self.execute(all, &little, &rows), "little scratch");
    }

    pub fn against_interpreter(&self, got: &Values, slack: f32) {
        let mut values = self.values.clone();
        for id in self.graph.node_ids() {
            interp::eval_node(&self.graph, &self.env, id, &mut values).unwrap();
            let node = self.graph.node(id);
            for v in &node.outputs {
                close(&self.graph, *v, &values[v], &got[v], [slack, self.relative]);
                values.insert(*v, got[v].clone());
            }
            if node.op.writes_state() {
                let v = node.inputs[0];
                let last = self.graph.nodes.iter().rev().find(|n| n.op.writes_state() && n.inputs[0] == v).unwrap();
                if std::ptr::eq(last, node) {
                    assert_eq!(values[&v].to_storage(), got[&v].to_storage(), "state `{}`", self.graph.value(v).name);
                }
            }
        }
    }
}

/// Distance between neighbours of a dtype at a magnitude.
fn unit(dtype: DType, x: f32) -> f32 {
    let bits = if dtype == DType::Bf16 { 8 } else { 24 };
    let exponent = ((x.abs().to_bits() >> 23) as i32 - 127).max(-126);
    (2.0f64).powi(exponent + 1 - bits) as f32
}

fn close(graph: &Graph, v: ValueId, want: &Array, got: &Array, [slack, relative]: [f32; 2]) {
    let name = &graph.value(v).name;
    if !matches!(want.ty_dtype, DType::F32 | DType::Bf16) {
        assert_eq!(want, got, "`{name}`");
        return;
    }
    let (want, floats) = (want.to_floats().unwrap(), got.to_floats().unwrap());
    let slack = slack + relative * want.iter().filter(|x| x.is_finite()).fold(0.0f32, |m, x| m.max(x.abs()));
    for (i, (w, g)) in want.iter().zip(&floats).enumerate() {
        let bound = unit(got.ty_dtype, *w) + slack;
        let ok = w == g || (w - g).abs() <= bound || (w.is_nan() && g.is_nan());
        assert!(ok, "`{name}`[{i}]: {g} for {w}, off by {} of {bound}", (w - g).abs());
    }
}

/// Bit equality of what both have.
pub fn same(graph: &Graph, a: &Values, b: &Values, what: &str) {
    for (v, x) in b {
        let y = &a[v];
        assert_eq!(x.to_storage(), y.to_storage(), "{what}: `{}` differs", graph.value(*v).name);
    }
}
