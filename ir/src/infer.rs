//! Shape rules of the ops.

use crate::dtype::DType;
use crate::expr::{Expr, Sym};
use crate::graph::{TensorType, TypeError};
use crate::op::{Op, Select, step};

type Shape = Vec<Expr>;

struct Rule<'a> {
    op: &'a Op,
    inputs: &'a [&'a TensorType],
}

impl Rule<'_> {
    fn fail<T>(&self, message: impl std::fmt::Display) -> Result<T, TypeError> {
        Err(TypeError::new(format!("`{}`: {message}", self.op.name())))
    }

    fn count(&self, n: usize) -> Result<(), TypeError> {
        if self.inputs.len() == n {
            return Ok(());
        }
        self.fail(format!("takes {n} operands, got {}", self.inputs.len()))
    }

    fn rank(&self, i: usize, rank: usize) -> Result<&[Expr], TypeError> {
        let shape = &self.inputs[i].shape;
        if shape.len() == rank {
            return Ok(shape);
        }
        self.fail(format!("operand {i} has {} axes, not {rank}", shape.len()))
    }

    fn at_least(&self, i: usize, rank: usize) -> Result<&[Expr], TypeError> {
        let shape = &self.inputs[i].shape;
        if shape.len() >= rank {
            return Ok(shape);
        }
        self.fail(format!("operand {i} has {} axes, fewer than {rank}", shape.len()))
    }

    fn shape_is(&self, i: usize, want: &[Expr]) -> Result<(), TypeError> {
        let got = &self.inputs[i].shape;
        if got == want {
            return Ok(());
        }
        let text = |s: &[Expr]| s.iter().map(Expr::to_string).collect::<Vec<_>>().join(", ");
        self.fail(format!("operand {i} has shape [{}], not [{}]", text(got), text(want)))
    }

    /// The rows of the step table at operand `i`: those of the step, or of its tail.
    fn step(&self, i: usize) -> Result<Expr, TypeError> {
        self.dtype(i, DType::I32)?;
        match self.rank(i, 2)? {
            [rows @ Expr::Sym(Sym::Tokens | Sym::TailRows), columns] if *columns == Expr::Const(step::COLUMNS) => {
                Ok(rows.clone())
            }
            _ => self.fail(format!("operand {i} is {}, not a step table", self.inputs[i])),
        }
    }

    /// As [`Rule::step`], and operand `x` has these rows.
    fn step_of(&self, i: usize, x: usize) -> Result<(), TypeError> {
        let rows = self.step(i)?;
        self.equal("rows", &self.at_least(x, 1)?[0], &rows)
    }

    fn dtype(&self, i: usize, dtype: DType) -> Result<(), TypeError> {
        if self.inputs[i].dtype == dtype {
            return Ok(());
        }
        self.fail(format!("operand {i} is {}, not {dtype}", self.inputs[i].dtype))
    }

    fn float(&self, i: usize) -> Result<(), TypeError> {
        match self.inputs[i].dtype {
            DType::F32 | DType::Bf16 | DType::Packed(_) => Ok(()),
            d @ (DType::I32 | DType::Weight(_)) => self.fail(format!("operand {i} is {d}, not a float")),
        }
    }

    fn konst(&self, e: &Expr) -> Result<u64, TypeError> {
        e.as_const().map_or_else(|| self.fail(format!("size {e} must be constant")), Ok)
    }

    fn equal(&self, what: &str, a: &Expr, b: &Expr) -> Result<(), TypeError> {
        if a == b { Ok(()) } else { self.fail(format!("{what} differ: {a} and {b}")) }
    }

    fn flat(&self, i: usize) -> Result<u64, TypeError> {
        let mut k = 1u64;
        for e in self.at_least(i, 2)?.iter().skip(1) {
            k = k.saturating_mul(self.konst(e)?);
        }
        Ok(k)
    }

    /// A matrix operand `[n, k]`, which may be a weight in a storage format.
    fn matrix(&self, i: usize, k: u64) -> Result<Expr, TypeError> {
        let shape = self.rank(i, 2)?;
        self.equal("inner sizes", &shape[1], &Expr::Const(k))?;
        Ok(shape[0].clone())
    }

    fn vector(&self, i: usize, n: u64) -> Result<(), TypeError> {
        self.shape_is(i, &[Expr::Const(n)])
    }
}

/// Result shapes of an op on operands of these types.
///
/// # Errors
/// Wrong number, rank, size or dtype of operands, with the op and operand named.
pub fn shapes(op: &Op, inputs: &[&TensorType]) -> Result<Vec<Shape>, TypeError> {
    let r = Rule { op, inputs };
    let first = |n: usize| if inputs.len() < n { r.count(n) } else { Ok(()) };
    let one = |s: Shape| Ok(vec![s]);
    match op {
        Op::Embed(_) => {
            r.count(2)?;
            let rows = r.step(1)?;
            let d = r.rank(0, 2)?[1].clone();
            one(vec![rows, d])
        }
        Op::Repeat(o) => {
            r.count(1)?;
            let s = r.rank(0, 2)?;
            one(vec![s[0].clone(), o.n.into(), s[1].clone()])
        }
        Op::OneHot(o) => {
            r.count(1)?;
            let rows = r.step(0)?;
            if o.index >= o.n {
                return r.fail(format!("index {} is outside {}", o.index, o.n));
            }
            one(vec![rows, o.n.into()])
        }
        Op::TakeRows(_) => {
            r.count(2)?;
            r.dtype(1, DType::I32)?;
            let rows = r.rank(1, 1)?[0].clone();
            let mut s = r.at_least(0, 2)?.to_vec();
            s[0] = rows;
            one(s)
        }
        Op::Add(_) => {
            r.count(2)?;
            let s = inputs[0].shape.clone();
            r.shape_is(1, &s)?;
            one(s)
        }
        Op::MhcStats(_) => {
            r.count(2)?;
            let k = r.flat(0)?;
            let m = r.matrix(1, k)?;
            one(vec![inputs[0].shape[0].clone(), m])
        }
        Op::MhcCoeffs(_) => {
            r.count(3)?;
            let s = r.rank(0, 2)?;
            let m = r.konst(&s[1])?;
            let Some(n) = (1..=64u64).find(|n| (2 + n) * n == m) else {
                return r.fail(format!("{m} is not (2 + n) n"));
            };
            r.vector(1, 3)?;
            r.vector(2, m)?;
            let t = s[0].clone();
            let n: Expr = n.into();
            Ok(vec![vec![t.clone(), n.clone()], vec![t.clone(), n.clone()], vec![t, n.clone(), n]])
        }
        Op::HeadCoeffs(_) => {
            r.count(3)?;
            let s = r.rank(0, 2)?.to_vec();
            r.vector(1, 1)?;
            r.vector(2, r.konst(&s[1])?)?;
            one(s)
        }
        Op::Collapse(_) => {
            r.count(2)?;
            let s = r.rank(0, 3)?;
            r.shape_is(1, &s[..2])?;
            one(vec![s[0].clone(), s[2].clone()])
        }
        Op::Expand(_) => {
            r.count(4)?;
            let s = r.rank(1, 3)?.to_vec();
            r.shape_is(0, &[s[0].clone(), s[2].clone()])?;
            r.shape_is(2, &s[..2])?;
            r.shape_is(3, &[s[0].clone(), s[1].clone(), s[1].clone()])?;
            one(s)
        }
        Op::RmsNorm(_) => {
            first(1)?;
            let s = r.at_least(0, 2)?.to_vec();
            r.float(0)?;
            if inputs.len() > 1 {
                r.count(2)?;
                r.vector(1, inputs[0].channels())?;
            }
            one(s)
        }
        Op::Rope(o) => {
            r.count(2)?;
            r.float(0)?;
            r.step_of(1, 0)?;
            let s = r.at_least(0, 2)?.to_vec();
            if o.rotary % 2 == 1 || o.rotary > inputs[0].channels() {
                return r.fail(format!("{} rotated channels of {}", o.rotary, inputs[0].channels()));
            }
            one(s)
        }
        Op::Hadamard(_) => {
            r.count(1)?;
            r.float(0)?;
            let c = inputs[0].channels();
            if !c.is_power_of_two() {
                return r.fail(format!("{c} channels are not a power of two"));
            }
            one(r.at_least(0, 2)?.to_vec())
        }
        Op::Quantize(_) => {
            r.count(1)?;
            r.float(0)?;
            one(r.at_least(0, 2)?.to_vec())
        }
        Op::Linear(o) => {
            first(2)?;
            if o.heads.len() != inputs.len() - 1 {
                return r.fail(format!("{} head counts for {} weights", o.heads.len(), inputs.len() - 1));
            }
            r.float(0)?;
            let k = r.flat(0)?;
            let m = inputs[0].shape[0].clone();
            (1..inputs.len())
                .map(|i| {
                    let n = r.matrix(i, k)?;
                    let heads = o.heads[i - 1];
                    match (heads, n.as_const()) {
                        (0, _) => Ok(vec![m.clone(), n]),
                        (h, Some(n)) if n % h == 0 => Ok(vec![m.clone(), h.into(), (n / h).into()]),
                        (h, _) => r.fail(format!("{n} rows do not split into {h} heads")),
                    }
                })
                .collect()
        }
        Op::GroupLinear(o) => {
            r.count(2)?;
            r.float(0)?;
            let k = r.flat(0)?;
            if o.groups == 0 || k % o.groups != 0 {
                return r.fail(format!("{k} channels do not split into {} groups", o.groups));
            }
            let n = r.matrix(1, k / o.groups)?;
            if r.konst(&n)? % o.groups != 0 {
                return r.fail(format!("{n} rows do not split into {} groups", o.groups));
            }
            one(vec![inputs[0].shape[0].clone(), n])
        }
        Op::RingWrite(_) | Op::PageWrite(_) => {
            r.count(3)?;
            r.step_of(2, 1)?;
            let row: Expr = r.flat(1)?.into();
            let s = r.rank(0, 3)?;
            r.equal("row sizes", &s[2], &row)?;
            if inputs[0].dtype != inputs[1].dtype {
                return r.fail(format!("stores {} rows into {} rows", inputs[1].dtype, inputs[0].dtype));
            }
            if let Op::PageWrite(p) = op {
                let entries = Expr::Sym(Sym::Context).ceil_div(u64::from(p.ratio));
                r.equal("entries", &s[1], &entries)?;
            }
            Ok(Vec::new())
        }
        Op::Pool(o) => {
            r.count(5 + usize::from(o.bias))?;
            let s = r.rank(0, 2)?.to_vec();
            r.shape_is(1, &s)?;
            r.step_of(4, 0)?;
            for i in [2, 3] {
                r.equal("ring channels", &r.rank(i, 3)?[2], &s[1])?;
            }
            if o.bias {
                r.shape_is(5, &[u64::from(o.ratio).into(), s[1].clone()])?;
            }
            let c = r.konst(&s[1])?;
            one(vec![s[0].clone(), (if o.overlap { c / 2 } else { c }).into()])
        }
        Op::IndexScores(o) => {
            r.count(if o.block > 0 { 5 } else { 4 })?;
            r.float(0)?;
            r.step_of(3, 0)?;
            let s = r.rank(0, 3)?;
            r.shape_is(1, &s[..2])?;
            r.equal("key channels", &r.rank(2, 3)?[2], &s[2])?;
            let columns = if o.block > 0 {
                r.rank(4, 2)?[1].clone() * o.block.into()
            } else {
                Expr::Sym(Sym::Context).ceil_div(u64::from(o.ratio))
            };
            one(vec![s[0].clone(), columns])
        }
        Op::TopK(o) => {
            r.count(if o.block > 0 { 3 } else { 2 })?;
            r.step_of(1, 0)?;
            one(vec![r.rank(0, 2)?[0].clone(), o.k.into()])
        }
        Op::CandidateBlocks(o) => {
            r.count(2)?;
            r.step_of(1, 0)?;
            one(vec![r.rank(0, 2)?[0].clone(), o.keep.into()])
        }
        Op::SparseAttention(o) => {
            let sink = usize::from(o.sink);
            let pages = 4 + sink;
            let extra = match o.select {
                Select::None => 0,
                Select::All => 1,
                Select::Listed => 2,
            };
            r.count(pages + extra)?;
            r.float(0)?;
            r.step_of(3, 0)?;
            let s = r.rank(0, 3)?.to_vec();
            r.shape_is(1, &[s[0].clone(), s[2].clone()])?;
            r.equal("ring channels", &r.rank(2, 3)?[2], &s[2])?;
            if o.sink {
                r.shape_is(4, &s[1..2])?;
            }
            if extra > 0 {
                r.equal("page channels", &r.rank(pages, 3)?[2], &s[2])?;
            }
            if extra > 1 {
                r.dtype(pages + 1, DType::I32)?;
                r.equal("index rows", &r.rank(pages + 1, 2)?[0], &s[0])?;
            }
            one(s)
        }
        Op::RouterTopK(o) => {
            r.count(3 + usize::from(o.image_bias))?;
            let s = r.rank(0, 2)?;
            r.shape_is(1, &s[1..])?;
            r.step_of(2, 0)?;
            if o.image_bias {
                r.shape_is(3, &s[1..])?;
            }
            let chosen = vec![s[0].clone(), o.k.into()];
            Ok(vec![chosen.clone(), chosen])
        }
        Op::RouterHash(o) => {
            r.count(3)?;
            let s = r.rank(0, 2)?;
            r.equal("experts per token", &r.rank(1, 2)?[1], &o.k.into())?;
            r.step_of(2, 0)?;
            let chosen = vec![s[0].clone(), o.k.into()];
            Ok(vec![chosen.clone(), chosen])
        }
        Op::LocalExperts(_) => {
            r.count(2)?;
            r.dtype(0, DType::I32)?;
            r.dtype(1, DType::I32)?;
            r.rank(1, 1)?;
            one(r.rank(0, 2)?.to_vec())
        }
        Op::ExpertLinear(_) => {
            first(3)?;
            r.float(0)?;
            r.dtype(1, DType::I32)?;
            let ids = r.rank(1, 2)?.to_vec();
            let c = Expr::Const(inputs[0].channels());
            match inputs[0].shape.len() {
                2 => r.shape_is(0, &[ids[0].clone(), c.clone()])?,
                _ => r.shape_is(0, &[ids[0].clone(), ids[1].clone(), c.clone()])?,
            }
            (2..inputs.len())
                .map(|i| {
                    let w = r.rank(i, 3)?;
                    r.equal("inner sizes", &w[2], &c)?;
                    Ok(vec![ids[0].clone(), ids[1].clone(), w[1].clone()])
                })
                .collect()
        }
        Op::SwiGlu(o) => {
            r.count(2 + usize::from(o.weighted))?;
            let s = inputs[0].shape.clone();
            r.shape_is(1, &s)?;
            if o.weighted {
                r.rank(0, 3)?;
                r.shape_is(2, &s[..2])?;
            }
            one(s)
        }
        Op::ExpertSum(o) => {
            r.count(2 + usize::from(o.shared))?;
            let s = r.rank(0, 3)?;
            r.shape_is(1, &s[..2])?;
            let out = vec![s[0].clone(), s[2].clone()];
            if o.shared {
                r.shape_is(2, &out)?;
            }
            one(out)
        }
        Op::EngramHash(o) => {
            r.count(3)?;
            r.dtype(0, DType::I32)?;
            let t = r.step(1)?;
            let orders = o.max_ngram.saturating_sub(1);
            if o.multipliers.len() as u64 != o.layers.saturating_mul(o.max_ngram)
                || o.primes.len() as u64 != o.layers.saturating_mul(orders).saturating_mul(o.heads)
                || o.primes.contains(&0)
            {
                return r.fail("multipliers or primes do not match the layers, orders and heads");
            }
            Ok(vec![vec![t.clone(), o.layers.into(), orders.saturating_mul(o.heads).into()], vec![t, 1.into()]])
        }
        Op::EngramGather(o) => {
            r.count(2)?;
            r.dtype(1, DType::I32)?;
            let c = r.rank(0, 2)?[1].clone();
            let s = r.rank(1, 3)?;
            if o.plane >= r.konst(&s[1])? {
                return r.fail(format!("plane {} is outside {}", o.plane, s[1]));
            }
            one(vec![s[0].clone(), s[2].clone() * c])
        }
        Op::EngramInject(_) => {
            r.count(5)?;
            let s = r.rank(0, 3)?.to_vec();
            let (n, d) = (r.konst(&s[1])?, r.konst(&s[2])?);
            r.shape_is(1, &[s[0].clone(), n.saturating_add(1).saturating_mul(d).into()])?;
            r.shape_is(2, &s[1..])?;
            r.shape_is(3, &s[1..])?;
            r.step_of(4, 0)?;
            one(s)
        }
        Op::AllReduce(_) => {
            r.count(1)?;
            one(inputs[0].shape.clone())
        }
    }
}

/// Whether output `i` of an op may have this type.
///
/// # Errors
/// A dtype the op cannot produce, or a row that its format cannot pack.
pub fn check_output(op: &Op, i: usize, ty: &TensorType) -> Result<(), TypeError> {
    let integer = match op {
        Op::TopK(_) | Op::CandidateBlocks(_) | Op::EngramHash(_) | Op::LocalExperts(_) => true,
        Op::RouterTopK(_) | Op::RouterHash(_) => i == 0,
        _ => false,
    };
    let ok = match (op, ty.dtype) {
        (Op::Quantize(q), DType::Packed(f)) => q.format == f,
        (Op::TakeRows(_), DType::Weight(_)) => false,
        (Op::TakeRows(_), _) => true,
        (_, DType::I32) => integer,
        (_, DType::F32 | DType::Bf16) => !integer && !matches!(op, Op::Quantize(_)),
        (_, DType::Packed(_) | DType::Weight(_)) => false,
    };
    if !ok {
        return Err(TypeError::new(format!("`{}` cannot produce {}", op.name(), ty.dtype)));
    }
    if let DType::Packed(f) = ty.dtype {
        let (c, g) = (ty.channels(), f.group());
        let quantised = match f {
            crate::dtype::RowFormat::Fp8Rope { rope } => c.checked_sub(u64::from(rope)),
            _ => Some(c),
        };
        if quantised.is_none_or(|q| g > 0 && q % g != 0) {
            return Err(TypeError::new(format!("`{}`: rows of {c} channels do not fit the groups of {f}", op.name())));
        }
    }
    Ok(())
}
