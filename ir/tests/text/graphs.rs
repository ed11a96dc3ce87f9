//! Random well-typed graphs.

use dsc_ir::dtype::{DType, RowFormat, WeightFormat};
use dsc_ir::expr::{Expr, Sym};
use dsc_ir::graph::{Def, Graph, Shard, StateKind, TensorType, ValueId, WeightSource};
use dsc_ir::op;
use proptest::prelude::*;

/// What to append to a graph: which op, its numbers, a layer, a name.
pub type Choice = (u8, u64, f32, Option<u32>, String);

pub fn choices() -> impl Strategy<Value = Vec<Choice>> {
    let float = prop_oneof![any::<f32>().prop_filter("NaN is not equal to itself", |x| !x.is_nan()), Just(1e-20f32)];
    let choice = (0u8..12, 1u64..5, float, proptest::option::of(0u32..70), any::<String>());
    proptest::collection::vec(choice, 0..12)
}

struct Growing {
    graph: Graph,
    step: ValueId,
    /// Floats `[n_tokens, 64]` to read.
    rows: Vec<ValueId>,
    n: usize,
}

fn constant(sizes: &[u64]) -> Vec<Expr> {
    sizes.iter().map(|n| Expr::Const(*n)).collect()
}

impl Growing {
    fn name(&mut self, name: &str) -> String {
        self.n += 1;
        format!("{name}.{}", self.n)
    }

    fn weight(&mut self, dtype: DType, shape: &[u64], layer: Option<u32>, name: &str, shard: Shard) -> ValueId {
        let name = self.name(name);
        let def = Def::Weight(WeightSource { tensor: format!("layers.{name}"), shard });
        self.graph.add_value(name, layer, TensorType::new(dtype, constant(shape)), def)
    }

    fn state(&mut self, dtype: DType, layer: Option<u32>, name: &str, kind: StateKind) -> ValueId {
        let slots = match kind {
            StateKind::Ring { keep } => Expr::Const(keep + 7),
            StateKind::Pages { ratio } => Expr::Sym(Sym::Context).ceil_div(u64::from(ratio)),
        };
        let name = self.name(name);
        let ty = TensorType::new(dtype, [Expr::Sym(Sym::Seqs), slots, Expr::Const(64)]);
        self.graph.add_value(name, layer, ty, Def::State(kind))
    }

    fn add(
        &mut self,
        op: impl Into<op::Op>,
        layer: Option<u32>,
        inputs: &[ValueId],
        name: &str,
        dtypes: &[DType],
    ) -> Vec<ValueId> {
        let names: Vec<String> = dtypes.iter().map(|_| self.name(name)).collect();
        let outputs: Vec<(&str, DType)> = names.iter().map(String::as_str).zip(dtypes.iter().copied()).collect();
        self.graph.add(op, layer, inputs, &outputs).unwrap()
    }

    fn grow(&mut self, (which, n, x, layer, name): Choice) {
        let layer = &layer;
        let (layer, name) = (*layer, name.as_str());
        let row = self.rows[(n as usize * 7 + self.n) % self.rows.len()];
        let ratio = n as u32;
        match which {
            0 => {
                let w = self.weight(DType::Bf16, &[64], layer, name, Shard::None);
                let y = self.add(op::RmsNorm { eps: x }, layer, &[row, w], name, &[DType::F32]);
                self.rows.extend(y);
            }
            1 => {
                let format = WeightFormat::Fp8 { tile: 32 };
                let w = self.weight(DType::Weight(format), &[64, 64], layer, name, Shard::Outer(n));
                let v = self.weight(DType::Weight(WeightFormat::Fp4), &[n * 8, 64], layer, name, Shard::Inner(2));
                let linear = op::Linear { heads: vec![0, n] };
                let y = self.add(linear, layer, &[row, w, v], name, &[DType::Bf16, DType::F32]);
                self.rows.push(y[0]);
            }
            2 => {
                let rope = op::Rope {
                    rotary: 16 * n,
                    inverse: n.is_multiple_of(2),
                    at: if n > 2 { op::RopeAt::Entry } else { op::RopeAt::Token },
                    ratio,
                    base: f64::from(x.abs()) * 1.1,
                    factor: 16.0,
                    original: 65536,
                    beta_fast: 32.0,
                    beta_slow: 1e-300,
                };
                let y = self.add(rope, layer, &[row, self.step], name, &[DType::F32]);
                self.rows.extend(y);
            }
            3 => {
                let format =
                    [RowFormat::Fp8, RowFormat::MxFp4, RowFormat::Fp4, RowFormat::Fp8Rope { rope: 64 }][n as usize - 1];
                let dtype = DType::Packed(format);
                let y = self.add(op::Quantize { format }, layer, &[row], name, &[dtype])[0];
                let ring = self.state(dtype, layer, name, StateKind::Ring { keep: n });
                self.add(op::RingWrite {}, layer, &[ring, y, self.step], name, &[]);
                self.rows.push(y);
            }
            4 => {
                let dtype = self.graph.ty(row).dtype;
                let pages = self.state(dtype, layer, name, StateKind::Pages { ratio });
                self.add(op::PageWrite { ratio }, layer, &[pages, row, self.step], name, &[]);
            }
            5 => {
                let x = self.add(op::Repeat { n }, layer, &[row], name, &[DType::Bf16])[0];
                let p = self.add(op::OneHot { n, index: n - 1 }, layer, &[self.step], name, &[DType::F32])[0];
                let y = self.add(op::Collapse {}, layer, &[x, p], name, &[DType::F32]);
                self.rows.extend(y);
            }
            6 => self.attend(row, n, x, layer, name),
            7 => self.route(row, n, x, layer, name),
            8 => {
                let y = self.add(op::Add {}, layer, &[row, row], name, &[DType::F32]);
                let h = self.add(op::Hadamard {}, layer, &y, name, &[DType::F32]);
                self.rows.extend(h);
            }
            9 => {
                let hash = op::EngramHash {
                    layers: 1,
                    max_ngram: 2,
                    heads: 2,
                    pad_token: n,
                    multipliers: vec![u64::MAX, n],
                    primes: vec![7, 11],
                };
                let map = self.weight(DType::I32, &[99], None, name, Shard::None);
                let ring_name = self.name(name);
                let ty = TensorType::new(DType::I32, [Expr::Sym(Sym::Seqs), 4.into(), 1.into()]);
                let ring = self.graph.add_value(ring_name, layer, ty, Def::State(StateKind::Ring { keep: 1 }));
                let out = self.add(hash, layer, &[map, self.step, ring], name, &[DType::I32, DType::I32]);
                self.add(op::RingWrite {}, layer, &[ring, out[1], self.step], name, &[]);
            }
            10 => self.index(row, ratio, x, layer, name),
            _ => {
                let y = self.add(op::AllReduce { ranks: n }, layer, &[row], name, &[DType::F32]);
                self.rows.extend(y);
            }
        }
    }

    fn attend(&mut self, row: ValueId, n: u64, x: f32, layer: Option<u32>, name: &str) {
        let q = self.add(op::Repeat { n }, layer, &[row], name, &[DType::F32])[0];
        let ring = self.state(DType::Packed(RowFormat::Fp8), layer, name, StateKind::Ring { keep: n });
        let pages = self.state(DType::Packed(RowFormat::Fp4), layer, name, StateKind::Pages { ratio: 2 });
        let sink = self.weight(DType::F32, &[n], layer, name, Shard::None);
        let attention = op::SparseAttention {
            window: n,
            ratio: 2,
            scale: x,
            sink: true,
            select: op::Select::All,
            round_probs: n.is_multiple_of(2),
        };
        self.add(attention, layer, &[q, row, ring, self.step, sink, pages], name, &[DType::F32]);
    }

    fn route(&mut self, row: ValueId, k: u64, scale: f32, layer: Option<u32>, name: &str) {
        let bias = self.weight(DType::F32, &[64], layer, name, Shard::None);
        let router = op::RouterTopK { k, norm: true, scale, image_bias: false };
        let chosen = self.add(router, layer, &[row, bias, self.step], name, &[DType::I32, DType::F32]);
        let map = self.weight(DType::I32, &[64], layer, name, Shard::None);
        let local = self.add(op::LocalExperts {}, layer, &[chosen[0], map], name, &[DType::I32])[0];
        let fp4 = DType::Weight(WeightFormat::Fp4);
        let w: Vec<_> = (0..2).map(|_| self.weight(fp4, &[64, 32, 64], layer, name, Shard::Outer(2))).collect();
        let h = self.add(op::ExpertLinear {}, layer, &[row, local, w[0], w[1]], name, &[DType::F32; 2]);
        let act = op::SwiGlu { limit: scale, weighted: true };
        let h = self.add(act, layer, &[h[0], h[1], chosen[1]], name, &[DType::Bf16])[0];
        self.add(op::ExpertSum { shared: false }, layer, &[h, local], name, &[DType::F32]);
    }

    fn index(&mut self, row: ValueId, ratio: u32, scale: f32, layer: Option<u32>, name: &str) {
        let q = self.add(op::Repeat { n: 2 }, layer, &[row], name, &[DType::F32])[0];
        let w = self.add(op::OneHot { n: 2, index: 0 }, layer, &[self.step], name, &[DType::F32])[0];
        let keys = self.state(DType::Packed(RowFormat::MxFp4), layer, name, StateKind::Pages { ratio });
        let scores = op::IndexScores { ratio, block: 0, scale };
        let s = self.add(scores, layer, &[q, w, keys, self.step], name, &[DType::F32])[0];
        let blocks = op::CandidateBlocks { ratio, block: 8, keep: 4 };
        let blocks = self.add(blocks, layer, &[s, self.step], name, &[DType::I32])[0];
        let scores = op::IndexScores { ratio, block: 8, scale };
        let s = self.add(scores, layer, &[q, w, keys, self.step, blocks], name, &[DType::F32])[0];
        self.add(op::TopK { k: 3, ratio, block: 8 }, layer, &[s, self.step, blocks], name, &[DType::I32]);
    }
}

/// The graph of these choices.
pub fn build(name: String, choices: Vec<Choice>) -> Graph {
    let mut graph = Graph::new(name);
    let step = TensorType::new(DType::I32, [Expr::tokens(), 8.into()]);
    let step = graph.add_value("step", None, step, Def::Input);
    let x = TensorType::new(DType::F32, [Expr::tokens(), 64.into()]);
    let x = graph.add_value("x", Some(0), x, Def::Input);
    let mut growing = Growing { graph, step, rows: vec![x], n: 0 };
    for choice in choices {
        growing.grow(choice);
    }
    growing.graph.results = growing.rows.iter().rev().take(3).copied().collect();
    growing.graph
}
