//! A graph written as text, with arrays by name.

use dsc_ir::expr::Env;
use dsc_ir::graph::{Graph, ValueId};
use dsc_ir::interp::{self, Array, InterpError, Values};
use dsc_ir::text;

pub struct Bench {
    pub graph: Graph,
    pub env: Env,
    pub values: Values,
}

/// One sequence's run in a step: sequence, first position, tokens.
pub struct Run<'a>(pub usize, pub usize, pub &'a [i32]);

/// The step table of these runs; negative tokens are image rows of token `-id`.
pub fn step_table(runs: &[Run<'_>]) -> Vec<i32> {
    let mut cells = Vec::new();
    let mut row0 = 0;
    for Run(seq, start, tokens) in runs {
        for (i, id) in tokens.iter().enumerate() {
            let (pos, end) = (start + i, start + tokens.len());
            let image = i32::from(*id < 0);
            cells.extend([id.abs(), pos as i32, *seq as i32, *start as i32, row0, end as i32, image, 0]);
        }
        row0 += tokens.len() as i32;
    }
    cells
}

impl Bench {
    /// A graph of these statements, returning nothing.
    pub fn new(statements: &str) -> Bench {
        let graph = text::parse(&format!("graph test {{ {statements} return }}")).unwrap();
        let env = Env { n_tokens: 1, n_seqs: 1, n_context: 16, n_out_rows: 1, n_tail_rows: 0 };
        Bench { graph, env, values: Values::new() }
    }

    pub fn id(&self, name: &str) -> ValueId {
        self.graph.value_ids().find(|v| self.graph.value(*v).name == name).unwrap()
    }

    pub fn shape(&self, name: &str) -> Vec<usize> {
        self.graph.ty(self.id(name)).shape.iter().map(|e| e.eval(&self.env) as usize).collect()
    }

    /// Sets the step table, and with it the number of tokens.
    pub fn step(&mut self, runs: &[Run<'_>]) -> &mut Bench {
        let cells = step_table(runs);
        self.env.n_tokens = cells.len() as u64 / 8;
        self.ints("step", cells)
    }

    pub fn floats(&mut self, name: &str, x: &[f32]) -> &mut Bench {
        let (id, shape) = (self.id(name), self.shape(name));
        let array = Array::from_floats(self.graph.ty(id).dtype, &shape, x.to_vec()).unwrap();
        self.values.insert(id, array);
        self
    }

    pub fn ints(&mut self, name: &str, x: Vec<i32>) -> &mut Bench {
        let array = Array::i32(&self.shape(name), x);
        self.values.insert(self.id(name), array);
        self
    }

    pub fn zeros(&mut self, name: &str) -> &mut Bench {
        let id = self.id(name);
        let array = Array::zeros(self.graph.ty(id).dtype, &self.shape(name)).unwrap();
        self.values.insert(id, array);
        self
    }

    pub fn try_run(&mut self) -> Result<(), InterpError> {
        interp::run(&self.graph, &self.env, &mut self.values)
    }

    pub fn run(&mut self) -> &mut Bench {
        self.try_run().unwrap();
        self
    }

    pub fn get(&self, name: &str) -> Vec<f32> {
        self.values[&self.id(name)].to_floats().unwrap()
    }

    pub fn get_ints(&self, name: &str) -> Vec<i32> {
        self.values[&self.id(name)].ints().unwrap().to_vec()
    }
}

pub fn assert_close(got: &[f32], want: &[f32]) {
    assert_eq!(got.len(), want.len(), "{got:?} {want:?}");
    for (g, w) in got.iter().zip(want) {
        assert!((g - w).abs() <= 1e-6 * w.abs().max(1.0), "{got:?} is not {want:?}");
    }
}

/// Deterministic floats between -1 and 1.
pub fn noise(n: usize, seed: u64) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..n).map(|_| next()).collect()
}
