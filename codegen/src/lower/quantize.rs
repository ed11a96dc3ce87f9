//! Packing of rows.

use super::LowerError;
use super::codec::{self, Scale};
use super::cx::Cx;
use super::view::{Coding, Line, Part, View};
use crate::loops::{Builder, IOp, Mem, Var};
use dsc_ir::dtype::RowFormat;
use dsc_ir::graph::Node;
use dsc_ir::op::Quantize;

/// Packs rows; a group a lane.
pub fn quantize(cx: &mut Cx<'_>, n: &Node, o: &Quantize) -> Result<(), LowerError> {
    let (x, out) = (cx.input(n, 0)?, cx.output(n, 0)?);
    let flow = cx.flow;
    let padding = padding(o.format, out.channels);
    cx.rows(|b, at| {
        let (x, out_row) = (x.row(b, at), out.row(b, at));
        let lines = b.int(out.lines);
        for part in out.codec.parts(out.channels) {
            let units = b.int(units(&part));
            let ahead = |b: &mut Builder, i: Var| (x.line(b, i), out_row.line(b, i));
            flow.grid(b, lines, units, ahead, |b, (x, out), unit| pack(b, x, out, &part, unit));
        }
        pad(b, &out, &padding, |b, i| out_row.line(b, i));
    });
    Ok(())
}

/// Work items of a part: groups, or elements where there are none.
fn units(part: &Part) -> u64 {
    match part.coding {
        Coding::Plain(_) => part.channels,
        Coding::E4m3 { group } | Coding::E2m1 { group, .. } => part.channels / group,
    }
}

fn pack(b: &mut Builder, x: &Line, out: &Line, part: &Part, unit: Var) {
    match part.coding {
        Coding::Plain(mem) => {
            let j = b.iadd_c(unit, part.first as i64);
            let v = x.load(b, j);
            let at = b.imul_c(unit, mem.bytes() as i64);
            let at = b.iadd(out.data, at);
            let at = b.iadd_c(at, part.offset as i64);
            b.store(out.place, at, mem, v);
        }
        Coding::E4m3 { group } => {
            let scale = group_scale(b, x, out, unit, group, Scale::Fp8);
            pack_e4m3(b, x, out, unit, group, scale);
        }
        Coding::E2m1 { group, scale } => {
            let scale = group_scale(b, x, out, unit, group, scale);
            pack_e2m1(b, x, out, unit, group, scale);
        }
    }
}

/// Stores the scale of a group and returns its value.
fn group_scale(b: &mut Builder, x: &Line, out: &Line, unit: Var, group: u64, scale: Scale) -> Var {
    let first = b.imul_c(unit, group as i64);
    let (zero, n, floor) = (b.int(0), b.int(group), b.float(scale.floor()));
    let [amax] = b.fold_(zero, n, [floor], |b, i, [m]| {
        let j = b.iadd(first, i);
        let v = x.load(b, j);
        [codec::amax(b, m, v)]
    });
    let code = scale.encode(b, amax);
    let at = b.iadd(out.scale, unit);
    b.store(out.place, at, Mem::U8, code);
    scale.decode(b, code)
}

fn pack_e4m3(b: &mut Builder, x: &Line, out: &Line, unit: Var, group: u64, scale: Var) {
    let first = b.imul_c(unit, group as i64);
    let (zero, n) = (b.int(0), b.int(group));
    b.for_(zero, n, |b, i| {
        let j = b.iadd(first, i);
        let v = x.load(b, j);
        let v = b.fdiv(v, scale);
        let code = codec::e4m3_encode(b, v);
        let at = b.iadd(out.data, j);
        b.store(out.place, at, Mem::U8, code);
    });
}

fn pack_e2m1(b: &mut Builder, x: &Line, out: &Line, unit: Var, group: u64, scale: Var) {
    let first = b.imul_c(unit, group as i64 / 2);
    let (zero, n) = (b.int(0), b.int(group / 2));
    b.for_(zero, n, |b, i| {
        let byte = b.iadd(first, i);
        let low = b.imul_c(byte, 2);
        let high = b.iadd_c(low, 1);
        let [low, high] = [low, high].map(|j| {
            let v = x.load(b, j);
            let v = b.fdiv(v, scale);
            codec::e2m1_encode(b, v)
        });
        let high = codec::int_c(b, IOp::Shl, high, 4);
        let pair = b.i(IOp::Or, low, high);
        let at = b.iadd(out.data, byte);
        b.store(out.place, at, Mem::U8, pair);
    });
}

/// Scale bytes of a line that belong to no group.
fn padding(format: RowFormat, channels: u64) -> std::ops::Range<u64> {
    match format {
        RowFormat::Fp8Rope { rope } => {
            channels.saturating_sub(u64::from(rope)).div_ceil(format.group())..format.scale_bytes(channels)
        }
        _ => 0..0,
    }
}

fn pad(b: &mut Builder, out: &View, padding: &std::ops::Range<u64>, line: impl FnOnce(&mut Builder, Var) -> Line) {
    if padding.is_empty() {
        return;
    }
    let lines = b.int(out.lines);
    b.lanes(lines, |b, i| {
        let (line, zero) = (line(b, i), b.int(0));
        for byte in padding.clone() {
            let at = b.iadd_c(line.scale, byte as i64);
            b.store(line.place, at, Mem::U8, zero);
        }
    });
}
