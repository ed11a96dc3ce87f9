//! Reductions over a block: per thread, then per warp by butterfly shuffles, then over the warps in order.

use super::super::builder::{KernelBuilder, SHARED};
use super::plan::{PARTIAL_BYTES, RowPlan, has_index};
use crate::loops::{Acc, Combine};
use inkwell::values::{BasicValueEnum, FloatValue, IntValue, PointerValue};
use inkwell::{FloatPredicate, IntPredicate};

/// A partial result.
#[derive(Clone, Copy)]
pub(super) enum Partial<'c> {
    Float(FloatValue<'c>),
    /// Value and iteration.
    Best(FloatValue<'c>, IntValue<'c>),
    Int(IntValue<'c>),
}

impl<'c> Partial<'c> {
    /// The result of no iterations.
    pub(super) fn neutral(b: &KernelBuilder<'c>, acc: &Acc) -> Partial<'c> {
        match acc.combine {
            Combine::Sum => Partial::Float(b.f32(0.0)),
            Combine::Max => Partial::Float(b.f32(f32::NEG_INFINITY)),
            Combine::ArgMax => Partial::Best(b.f32(f32::NEG_INFINITY), b.i64(-1)),
            Combine::SumI => Partial::Int(b.i64(0)),
        }
    }

    /// The values that a loop carries for it.
    pub(super) fn values(self) -> Vec<BasicValueEnum<'c>> {
        match self {
            Partial::Float(x) => vec![x.into()],
            Partial::Best(x, i) => vec![x.into(), i.into()],
            Partial::Int(i) => vec![i.into()],
        }
    }

    /// The partial of carried values, taken from the front of `values`.
    pub(super) fn take(acc: &Acc, values: &mut impl Iterator<Item = BasicValueEnum<'c>>) -> Option<Partial<'c>> {
        let first = values.next()?;
        Some(match (acc.combine, has_index(acc)) {
            (Combine::SumI, _) => Partial::Int(first.into_int_value()),
            (_, true) => Partial::Best(first.into_float_value(), values.next()?.into_int_value()),
            (_, false) => Partial::Float(first.into_float_value()),
        })
    }

    /// Both together; `self` comes first in iteration order within a thread.
    pub(super) fn combine(self, b: &KernelBuilder<'c>, acc: &Acc, other: Partial<'c>) -> Partial<'c> {
        match (self, other) {
            (Partial::Float(x), Partial::Float(y)) if acc.combine == Combine::Max => Partial::Float(b.fmax(x, y)),
            (Partial::Float(x), Partial::Float(y)) => Partial::Float(b.fadd(x, y)),
            (Partial::Int(x), Partial::Int(y)) => Partial::Int(b.add(x, y)),
            (Partial::Best(x, i), Partial::Best(y, j)) => {
                // As unsigned numbers the index of nothing, -1, is the largest.
                let tie = b.and(b.fcmp(FloatPredicate::OEQ, x, y), b.icmp(IntPredicate::ULT, j, i));
                let better = b.or(b.fcmp(FloatPredicate::OGT, y, x), tie);
                // A value of -inf wins nowhere, so that its index stays -1.
                let some = b.fcmp(FloatPredicate::OGT, y, b.f32(f32::NEG_INFINITY));
                let better = b.and(better, some);
                Partial::Best(b.select(better, y, x), b.select(better, j, i))
            }
            (x, _) => {
                b.fail("partial results of different kinds");
                x
            }
        }
    }

    fn shuffled(self, b: &KernelBuilder<'c>, mask: u32) -> Partial<'c> {
        match self {
            Partial::Float(x) => Partial::Float(b.shuffle_float(x, mask)),
            Partial::Best(x, i) => Partial::Best(b.shuffle_float(x, mask), b.shuffle_long(i, mask)),
            Partial::Int(i) => Partial::Int(b.shuffle_long(i, mask)),
        }
    }
}

/// Where reductions leave their partial results.
pub(super) struct Reducer<'c> {
    /// The block's shared memory.
    pub(super) base: PointerValue<'c>,
    /// Number of the thread in its block.
    pub(super) thread: IntValue<'c>,
}

impl<'c> Reducer<'c> {
    /// Combines the threads' partials; every thread gets the same results. Ends with a barrier if the block
    /// has several warps.
    pub(super) fn reduce(
        &self,
        b: &KernelBuilder<'c>,
        plan: &RowPlan,
        accs: &[Acc],
        partials: Vec<Partial<'c>>,
    ) -> Vec<Partial<'c>> {
        let warp = |(acc, mut p): (&Acc, Partial<'c>)| {
            for mask in [16, 8, 4, 2, 1] {
                // Both lanes of a pair add the same two numbers, so all lanes end with the same bits.
                p = p.combine(b, acc, p.shuffled(b, mask));
            }
            p
        };
        let partials: Vec<_> = accs.iter().zip(partials).map(warp).collect();
        if plan.n_warps() == 1 {
            return partials;
        }
        let is_first = b.icmp(IntPredicate::EQ, b.and(self.thread, b.i32(31)), b.i32(0));
        let store = b.begin_if(is_first);
        let warp = b.shr(self.thread, b.i32(5));
        for (i, p) in partials.iter().enumerate() {
            self.put(b, self.slot(b, plan, i, warp), *p);
        }
        b.end_if(store);
        b.barrier();
        let mut totals = Vec::with_capacity(accs.len());
        for (i, acc) in accs.iter().enumerate() {
            let mut total = self.get(b, acc, self.slot(b, plan, i, b.i32(0)));
            for warp in 1..plan.n_warps() {
                total = total.combine(b, acc, self.get(b, acc, self.slot(b, plan, i, b.i32(warp))));
            }
            totals.push(total);
        }
        b.barrier();
        totals
    }

    fn slot(&self, b: &KernelBuilder<'c>, plan: &RowPlan, i: usize, warp: IntValue<'c>) -> PointerValue<'c> {
        let first = plan.partials_at + i as u64 * u64::from(plan.n_warps()) * PARTIAL_BYTES;
        let at = b.add(b.mul(warp, b.i32(PARTIAL_BYTES as u32)), b.i32(first as u32));
        b.offset(self.base, b.zext(at, b.i64_ty()))
    }

    fn put(&self, b: &KernelBuilder<'c>, at: PointerValue<'c>, p: Partial<'c>) {
        debug_assert_eq!(at.get_type().get_address_space(), inkwell::AddressSpace::from(SHARED));
        match p {
            Partial::Float(x) => b.store(at, x, 4),
            Partial::Int(i) => b.store(at, i, 8),
            Partial::Best(x, i) => {
                b.store(at, x, 8);
                // Iterations are below 2^31; -1 stays -1.
                b.store(b.offset(at, b.i64(4)), b.trunc(i, b.i32_ty()), 4);
            }
        }
    }

    fn get(&self, b: &KernelBuilder<'c>, acc: &Acc, at: PointerValue<'c>) -> Partial<'c> {
        match (acc.combine, has_index(acc)) {
            (Combine::SumI, _) => Partial::Int(b.load(b.i64_ty(), at, 8).into_int_value()),
            (_, true) => {
                let x = b.load(b.f32_ty(), at, 8).into_float_value();
                let i = b.load(b.i32_ty(), b.offset(at, b.i64(4)), 4).into_int_value();
                Partial::Best(x, b.sext(i, b.i64_ty()))
            }
            (_, false) => Partial::Float(b.load(b.f32_ty(), at, 4).into_float_value()),
        }
    }
}
