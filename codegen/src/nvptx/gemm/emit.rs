//! From a gemm plan to LLVM IR.

use super::super::NvptxError;
use super::super::builder::{BlockShape, KernelBuilder, PointerParam};
use super::desc::{GemmDesc, GemmOutput};
use super::load::{Matrix, QUAD, Storage};
use super::plan::GemmPlan;
use dsc_ir::expr::Expr;
use inkwell::IntPredicate;
use inkwell::context::Context;
use inkwell::module::Module;
use inkwell::values::{BasicValueEnum, FloatValue, IntValue, PointerValue};

/// Blocks of a multiprocessor that must fit: two, so that one computes while the other waits, with 128 registers or
/// more for a thread.
const RESIDENT_BLOCKS: u32 = 2;

pub(super) fn emit<'c>(cx: &'c Context, desc: &GemmDesc, plan: &GemmPlan, arch: u32) -> Result<Module<'c>, NvptxError> {
    let is_result = |i| desc.outputs.iter().any(|o| o.y_param == i);
    let params: Vec<_> = (0..desc.n_params).map(|i| PointerParam { read_only: !is_result(i) }).collect();
    let shape = BlockShape { threads: plan.threads(), resident: RESIDENT_BLOCKS };
    let b = KernelBuilder::new(cx, &desc.symbol, &params, shape, arch);
    let smem = b.shared_area(&format!("{}_smem", desc.symbol), plan.smem_bytes());
    let rows = size(&b, desc, &desc.rows);
    let mut first_tile = 0;
    for output in &desc.outputs {
        // 1. where this block works
        let n_tiles = plan.tiles_of(desc, output.n);
        let tile = b.sub(b.block_y(), b.i32(first_tile as u32));
        let mine = b.begin_if(b.icmp(IntPredicate::ULT, tile, b.i32(n_tiles as u32)));
        let work = Work::new(&b, desc, plan, output, rows, b.zext(tile, b.i64_ty()), smem);
        // 2 to 4. load, multiply and add over the channels
        let sums = work.sums();
        // 5. store, rounding once
        work.store(&sums);
        b.end_if(mine);
        first_tile += n_tiles;
    }
    b.ret();
    match b.fault() {
        Some(message) => Err(NvptxError::Llvm { kernel: desc.symbol.clone(), message }),
        None => Ok(b.module),
    }
}

/// A symbolic size at run time.
fn size<'c>(b: &KernelBuilder<'c>, desc: &GemmDesc, e: &Expr) -> IntValue<'c> {
    let all = |v: &[Expr]| v.iter().map(|e| size(b, desc, e)).collect::<Vec<_>>();
    match e {
        Expr::Const(c) => b.u64(*c),
        Expr::Sym(s) => b.int_param(desc.n_params + *s as u32),
        Expr::Add(v) => all(v).into_iter().fold(b.i64(0), |x, y| b.add(x, y)),
        Expr::Mul(v) => all(v).into_iter().fold(b.i64(1), |x, y| b.mul(x, y)),
        Expr::CeilDiv(e, d) => {
            let up = b.add(size(b, desc, e), b.u64(d.saturating_sub(1)));
            b.div(up, b.u64((*d).max(1)))
        }
        Expr::Min(x, y) => b.smin(size(b, desc, x), size(b, desc, y)),
    }
}

/// The part of one output that one block computes.
struct Work<'a, 'c> {
    b: &'a KernelBuilder<'c>,
    desc: &'a GemmDesc,
    plan: &'a GemmPlan,
    output: &'a GemmOutput,
    x: Matrix<'c>,
    w: Matrix<'c>,
    thread: IntValue<'c>,
    /// First row of `x`.
    m0: IntValue<'c>,
    /// First row of `w`, and the end of its group.
    n0: IntValue<'c>,
    n_end: IntValue<'c>,
    /// First channel of `x` of the group.
    k0: IntValue<'c>,
    smem: PointerValue<'c>,
}

impl<'a, 'c> Work<'a, 'c> {
    fn new(
        b: &'a KernelBuilder<'c>,
        desc: &'a GemmDesc,
        plan: &'a GemmPlan,
        output: &'a GemmOutput,
        rows: IntValue<'c>,
        tile: IntValue<'c>,
        smem: PointerValue<'c>,
    ) -> Work<'a, 'c> {
        let k = desc.k_per_group();
        let n_per_group = output.n / desc.groups;
        let tiles_per_group = b.u64(n_per_group.div_ceil(plan.block_n));
        let group = b.div(tile, tiles_per_group);
        let n_group = b.mul(group, b.u64(n_per_group));
        let n_inside = b.mul(b.rem(tile, tiles_per_group), b.u64(plan.block_n));
        let storage = Storage::of_weight(output.weight, output.n, k);
        Work {
            b,
            desc,
            plan,
            output,
            x: Matrix { base: b.pointer_param(desc.x_param), storage: Storage::of_rows(desc.x), k: desc.k, rows },
            w: Matrix { base: b.pointer_param(output.w_param), storage, k, rows: b.u64(output.n) },
            thread: b.zext(b.thread(), b.i64_ty()),
            m0: b.mul(b.zext(b.block_x(), b.i64_ty()), b.u64(plan.block_m)),
            n0: b.add(n_group, n_inside),
            n_end: b.add(n_group, b.u64(n_per_group)),
            k0: b.mul(group, b.u64(k)),
            smem,
        }
    }

    /// Row and first channel in a tile of `rows`, of each quad that this thread carries there.
    fn quads(&self, rows: u64) -> Vec<(IntValue<'c>, IntValue<'c>)> {
        let (b, per_row) = (self.b, self.plan.block_k / QUAD);
        let threads = u64::from(self.plan.threads());
        let n = (rows * per_row).div_ceil(threads);
        let quad = |i| {
            let number = b.add(self.thread, b.u64(i * threads));
            (b.div(number, b.u64(per_row)), b.mul(b.rem(number, b.u64(per_row)), b.u64(QUAD)))
        };
        (0..n).map(quad).collect()
    }

    /// This thread's part of the tiles that start at channel `at` of the group.
    fn fetch(&self, at: IntValue<'c>) -> Vec<BasicValueEnum<'c>> {
        let (b, k) = (self.b, self.desc.k_per_group());
        let aligned = k.is_multiple_of(QUAD);
        let mut values = Vec::new();
        for (row, channel) in self.quads(self.plan.block_m) {
            let start = b.add(self.k0, b.add(at, channel));
            let end = b.add(self.k0, b.u64(k));
            values.extend(self.x.quad(b, b.add(self.m0, row), start, end, aligned));
        }
        for (row, channel) in self.quads(self.plan.block_n) {
            values.extend(self.w.quad(b, b.add(self.n0, row), b.add(at, channel), b.u64(k), aligned));
        }
        values.into_iter().map(Into::into).collect()
    }

    /// Puts fetched values into the tiles, channel by channel.
    fn put(&self, values: &[BasicValueEnum<'c>]) {
        let b = self.b;
        let plan = self.plan;
        let x = self.quads(plan.block_m).into_iter().map(|q| (q, 0, plan.x_stride()));
        let w = self.quads(plan.block_n).into_iter().map(|q| (q, plan.w_tile_at(), plan.w_stride()));
        for (((row, channel), tile, stride), four) in x.chain(w).zip(values.chunks(QUAD as usize)) {
            let first = b.add(b.mul(channel, b.u64(stride)), row);
            let first = b.offset(b.offset(self.smem, b.u64(tile)), b.mul(first, b.i64(4)));
            for (j, v) in four.iter().enumerate() {
                b.store(b.offset(first, b.u64(j as u64 * stride * 4)), *v, 4);
            }
        }
    }

    /// First row or column of this thread in its block.
    fn place(&self) -> (IntValue<'c>, IntValue<'c>) {
        let b = self.b;
        let across = b.u64(self.plan.block_n / self.plan.thread_n);
        let down = b.mul(b.div(self.thread, across), b.u64(self.plan.thread_m));
        (down, b.mul(b.rem(self.thread, across), b.u64(self.plan.thread_n)))
    }

    /// The thread's sums over all channels, row by row.
    fn sums(&self) -> Vec<FloatValue<'c>> {
        let (b, plan) = (self.b, self.plan);
        let n_sums = (plan.thread_m * plan.thread_n) as usize;
        let mut carried: Vec<BasicValueEnum> = vec![b.f32(0.0).into(); n_sums];
        carried.extend(self.fetch(b.i64(0)));
        let (k, step) = (b.u64(self.desc.k_per_group()), b.u64(plan.block_k));
        let Some(l) = b.begin_loop(b.i64(0), k, step, &carried) else {
            return Vec::new();
        };
        let (sums, fetched) = l.phis.split_at(n_sums);
        self.put(fetched);
        b.barrier();
        // The next tiles are on their way while these are multiplied.
        let next = self.fetch(b.add(l.var, step));
        let mut sums: Vec<_> = sums.iter().map(|v| v.into_float_value()).collect();
        self.multiply(&mut sums);
        b.barrier();
        let mut values: Vec<BasicValueEnum> = sums.into_iter().map(Into::into).collect();
        values.extend(next);
        let outs = b.end_loop(&l, &values);
        outs.into_iter().take(n_sums).map(|v| v.into_float_value()).collect()
    }

    /// Adds the products of the tiles, channels ascending.
    fn multiply(&self, sums: &mut [FloatValue<'c>]) {
        let (b, plan) = (self.b, self.plan);
        let (row, column) = self.place();
        let x = b.offset(self.smem, b.mul(row, b.i64(4)));
        let w = b.offset(b.offset(self.smem, b.u64(plan.w_tile_at())), b.mul(column, b.i64(4)));
        let read = |base, at: u64| b.load(b.f32_ty(), b.offset(base, b.u64(at * 4)), 4).into_float_value();
        for channel in 0..plan.block_k {
            let xs: Vec<_> = (0..plan.thread_m).map(|i| read(x, channel * plan.x_stride() + i)).collect();
            let ws: Vec<_> = (0..plan.thread_n).map(|j| read(w, channel * plan.w_stride() + j)).collect();
            let pairs = xs.iter().flat_map(|x| ws.iter().map(move |w| (*x, *w)));
            for (sum, (x, w)) in sums.iter_mut().zip(pairs) {
                *sum = b.fma(x, w, *sum);
            }
        }
    }

    fn store(&self, sums: &[FloatValue<'c>]) {
        let (b, plan) = (self.b, self.plan);
        let y = b.pointer_param(self.output.y_param);
        let (row, column) = self.place();
        let (row, column) = (b.add(self.m0, row), b.add(self.n0, column));
        for (i, sum) in sums.iter().enumerate() {
            let row = b.add(row, b.u64(i as u64 / plan.thread_n));
            let column = b.add(column, b.u64(i as u64 % plan.thread_n));
            let inside =
                b.and(b.icmp(IntPredicate::SLT, row, self.x.rows), b.icmp(IntPredicate::SLT, column, self.n_end));
            let open = b.begin_if(inside);
            let at = b.add(b.mul(row, b.u64(self.output.n)), column);
            if self.output.bf16 {
                b.store(b.offset(y, b.mul(at, b.i64(2))), b.to_bf16(*sum), 2);
            } else {
                b.store(b.offset(y, b.mul(at, b.i64(4))), *sum, 4);
            }
            b.end_if(open);
        }
    }
}
