//! Ops along the last axis: normalisation, rotation, Hadamard transform.

use super::LowerError;
use super::cx::Cx;
use super::math::inverse_rms;
use super::state::step;
use super::view::{Line, Row, View};
use crate::loops::{Builder, Cmp, Combine, FUn, IOp, Var};
use dsc_ir::graph::Node;
use dsc_ir::op::{RmsNorm, Rope, RopeAt, step as column};
use dsc_ir::rope::inv_freq;

/// Root-mean-square normalisation.
pub fn rms_norm(cx: &mut Cx<'_>, n: &Node, o: &RmsNorm) -> Result<(), LowerError> {
    let (x, out) = (cx.input(n, 0)?, cx.output(n, 0)?);
    let weight = if n.inputs.len() > 1 { Some(cx.input(n, 1)?) } else { None };
    cx.rows(|b, at| {
        let (x, out_row) = (x.row(b, at), out.row(b, at));
        let (zero, lines, c) = (b.int(0), b.int(out.lines), b.int(out.channels));
        let weight = weight.as_ref().map(|w| w.line(b, zero));
        let line = |b: &mut Builder, i: Var| {
            let (x, out) = (x.line(b, i), out_row.line(b, i));
            let squares = b.reduce(c, Combine::Sum, |b, j| {
                let v = x.load(b, j);
                b.fmul(v, v)
            });
            let inv = inverse_rms(b, squares, x.channels, o.eps);
            b.lanes(c, |b, j| {
                let v = x.load(b, j);
                let mut y = b.fmul(v, inv);
                if let Some(weight) = weight {
                    let w = weight.load(b, j);
                    y = b.fmul(y, w);
                }
                out.store(b, j, y);
            });
        };
        if out.lines == 1 { line(b, zero) } else { b.for_(zero, lines, line) }
    });
    Ok(())
}

/// Rotation of adjacent pairs. A row's cosines and sines are computed once and serve all its lines.
pub fn rope(cx: &mut Cx<'_>, n: &Node, o: &Rope) -> Result<(), LowerError> {
    let (x, steps, out) = (cx.input(n, 0)?, cx.input(n, 1)?, cx.output(n, 0)?);
    let pairs = o.rotary / 2;
    let frequencies = cx.panel("frequencies", 1, pairs);
    let turns = cx.panel("turns", 2, pairs);
    let zero = cx.b.int(0);
    let frequencies = frequencies.line(&mut cx.b, zero);
    write_constants(&mut cx.b, &frequencies, &inv_freq(o));
    let flow = cx.flow;
    cx.rows(|b, at| {
        let (x, steps, out_row) = (x.row(b, at), steps.row(b, at), out.row(b, at));
        let position = position(b, &steps, o);
        let turns = turn(b, position, &frequencies, &turns, pairs, o.inverse);
        let (lines, items) = (b.int(out.lines), b.int(out.channels - pairs));
        let passed = b.int(out.channels - o.rotary);
        let ahead = |b: &mut Builder, i: Var| (x.line(b, i), out_row.line(b, i));
        flow.grid(b, lines, items, ahead, |b, (x, out), j| {
            let is_passed = b.cmp(Cmp::Lt, j, passed);
            b.if_(is_passed, |b| {
                let v = x.load(b, j);
                out.store(b, j, v);
            });
            let is_pair = b.not(is_passed);
            b.if_(is_pair, |b| {
                let pair = b.isub(j, passed);
                rotate(b, x, out, &turns, passed, pair);
            });
        });
    });
    Ok(())
}

fn write_constants(b: &mut Builder, to: &Line, values: &[f32]) {
    let one = b.int(1);
    b.lanes(one, |b, _| {
        for (j, v) in values.iter().enumerate() {
            let (j, v) = (b.int(j as u64), b.float(*v));
            to.store(b, j, v);
        }
    });
}

/// The position as a float.
fn position(b: &mut Builder, steps: &Row, o: &Rope) -> Var {
    let pos = step(b, steps, column::POS);
    let pos = match o.at {
        RopeAt::Token => pos,
        RopeAt::Entry => {
            let ratio = i64::from(o.ratio.max(1));
            let entry = b.idiv_c(pos, ratio);
            b.imul_c(entry, ratio)
        }
    };
    b.itof(pos)
}

/// Cosines and sines of a row's angles.
fn turn(b: &mut Builder, position: Var, frequencies: &Line, turns: &View, pairs: u64, inverse: bool) -> [Line; 2] {
    let (zero, one, pairs) = (b.int(0), b.int(1), b.int(pairs));
    let (cosines, sines) = (turns.line(b, zero), turns.line(b, one));
    b.lanes(pairs, |b, j| {
        let frequency = frequencies.load(b, j);
        let angle = b.fmul(position, frequency);
        let (cos, sin) = (b.u(FUn::Cos, angle), b.u(FUn::Sin, angle));
        let sin = if inverse { b.u(FUn::Neg, sin) } else { sin };
        cosines.store(b, j, cos);
        sines.store(b, j, sin);
    });
    [cosines, sines]
}

fn rotate(b: &mut Builder, x: &Line, out: &Line, [cosines, sines]: &[Line; 2], passed: Var, pair: Var) {
    let (cos, sin) = (cosines.load(b, pair), sines.load(b, pair));
    let even = b.imul_c(pair, 2);
    let even = b.iadd(passed, even);
    let odd = b.iadd_c(even, 1);
    let (p, q) = (x.load(b, even), x.load(b, odd));
    let (pc, qs) = (b.fmul(p, cos), b.fmul(q, sin));
    let (ps, qc) = (b.fmul(p, sin), b.fmul(q, cos));
    let (first, second) = (b.fsub(pc, qs), b.fadd(ps, qc));
    out.store(b, even, first);
    out.store(b, odd, second);
}

/// Walsh-Hadamard transform by butterflies in scratch.
pub fn hadamard(cx: &mut Cx<'_>, n: &Node) -> Result<(), LowerError> {
    let (x, out) = (cx.input(n, 0)?, cx.output(n, 0)?);
    let c = out.channels;
    let work = cx.panel("hadamard", 1, c);
    cx.rows(|b, at| {
        let (x, out_row) = (x.row(b, at), out.row(b, at));
        let (zero, lines, channels) = (b.int(0), b.int(out.lines), b.int(c));
        let work = work.line(b, zero);
        b.for_(zero, lines, |b, i| {
            let (x, out) = (x.line(b, i), out_row.line(b, i));
            b.lanes(channels, |b, j| {
                let v = x.load(b, j);
                work.store(b, j, v);
            });
            let mut half = 1;
            while half < c {
                butterflies(b, &work, c, half);
                half *= 2;
            }
            let scale = (c as f64).powf(-0.5) as f32;
            b.lanes(channels, |b, j| {
                let (v, scale) = (work.load(b, j), b.float(scale));
                let y = b.fmul(v, scale);
                out.store(b, j, y);
            });
        });
    });
    Ok(())
}

fn butterflies(b: &mut Builder, work: &Line, c: u64, half: u64) {
    let (pairs, distance) = (b.int(c / 2), b.int(half));
    b.lanes(pairs, |b, i| {
        let (block, offset) = (b.i(IOp::Div, i, distance), b.i(IOp::Rem, i, distance));
        let first = b.imul_c(block, 2 * half as i64);
        let first = b.iadd(first, offset);
        let second = b.iadd(first, distance);
        let (p, q) = (work.load(b, first), work.load(b, second));
        let (plus, minus) = (b.fadd(p, q), b.fsub(p, q));
        work.store(b, first, plus);
        work.store(b, second, minus);
    });
}
