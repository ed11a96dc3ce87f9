//! Views: where a value's elements are and how they are stored.
//!
//! A value is a list of *lines*, each of as many channels as its last axis. A row of the kernel owns a constant
//! number of consecutive lines; weights and states are read by line number.

use super::codec::{self, Scale, Tables};
use crate::loops::{Builder, Cmp, IOp, Mem, Place, Var};
use dsc_ir::dtype::{DType, RowFormat, WeightFormat};
use dsc_ir::expr::Expr;
use dsc_ir::graph::TensorType;

/// How channels are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Coding {
    /// Elements one after the other.
    Plain(Mem),
    /// E4M3 codes with a UE8M0 scale per group.
    E4m3 {
        /// Channels of a group.
        group: u64,
    },
    /// E2M1 codes, two a byte, with a scale per group.
    E2m1 {
        /// Channels of a group.
        group: u64,
        /// The scales.
        scale: Scale,
    },
}

/// How a line is stored: its first channels in one coding, and perhaps bf16 channels after them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Codec {
    /// Storage of the first channels.
    pub coding: Coding,
    /// Channels at the end that are bf16.
    pub tail: u64,
}

/// A run of channels that are stored alike.
#[derive(Debug, Clone, Copy)]
pub struct Part {
    /// First channel.
    pub first: u64,
    /// Channels.
    pub channels: u64,
    /// Byte offset of the first channel in the line's data.
    pub offset: u64,
    /// Storage.
    pub coding: Coding,
}

const BF16: Coding = Coding::Plain(Mem::Bf16);

impl Codec {
    /// The codec of a dtype.
    pub fn of(dtype: DType) -> Codec {
        let coding = match dtype {
            DType::F32 | DType::Packed(RowFormat::F32) | DType::Weight(WeightFormat::F32) => Coding::Plain(Mem::F32),
            DType::Bf16 | DType::Packed(RowFormat::Bf16) | DType::Weight(WeightFormat::Bf16) => BF16,
            DType::I32 => Coding::Plain(Mem::I32),
            DType::Packed(RowFormat::Fp8) => Coding::E4m3 { group: 32 },
            DType::Packed(RowFormat::MxFp4) => Coding::E2m1 { group: 32, scale: Scale::MxFp4 },
            DType::Packed(RowFormat::Fp4) => Coding::E2m1 { group: 16, scale: Scale::Fp4 },
            DType::Packed(RowFormat::Fp8Rope { rope }) => {
                return Codec { coding: Coding::E4m3 { group: 64 }, tail: u64::from(rope) };
            }
            DType::Weight(WeightFormat::Fp8 { tile }) => Coding::E4m3 { group: u64::from(tile) },
            DType::Weight(WeightFormat::Fp4) => Coding::E2m1 { group: 32, scale: Scale::MxFp4 },
        };
        Codec { coding, tail: 0 }
    }

    /// The element type, where all channels are elements one after the other.
    pub fn plain(self) -> Option<Mem> {
        match self.coding {
            Coding::Plain(mem) if self.tail == 0 => Some(mem),
            _ => None,
        }
    }

    /// The parts of a line of `channels`.
    pub fn parts(self, channels: u64) -> Vec<Part> {
        let split = channels.saturating_sub(self.tail);
        let head = Part { first: 0, channels: split, offset: 0, coding: self.coding };
        let tail = Part { first: split, channels: channels - split, offset: split, coding: BF16 };
        [head, tail].into_iter().filter(|p| p.channels > 0).collect()
    }
}

/// Bytes from one line to the next.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Stride {
    Const(u64),
    Symbolic(Expr),
}

/// Where the scales of a line are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Scales {
    /// Behind the line's data.
    InLine { offset: u64 },
    /// Behind all data of the weight: `per_line` scales for every `tile` lines of each `lines`-line matrix.
    Behind { start: u64, lines: u64, tile: u64, per_line: u64 },
}

/// A value's memory.
#[derive(Debug, Clone)]
pub struct View {
    /// Memory.
    pub place: Place,
    /// Storage of a line.
    pub codec: Codec,
    /// Channels of a line; 0 where they are known only at launch.
    pub channels: u64,
    /// Lines of a row.
    pub lines: u64,
    /// Whether rows are counted from the start of the block (scratch) or of the value.
    pub local: bool,
    stride: Stride,
    scales: Scales,
    /// Where the view is a part of each row: its first line there, and the lines of a whole row.
    part: Option<(Var, u64)>,
}

impl View {
    /// A value with a row per row of its first axis; a value of one axis has one element a row.
    /// `None` where an inner axis other than the last is symbolic.
    pub fn rows(place: Place, ty: &TensorType, local: bool) -> Option<View> {
        let (inner, last) = match ty.shape.as_slice() {
            [] | [_] => (&[][..], Expr::Const(1)),
            [_, inner @ .., last] => (inner, last.clone()),
        };
        let lines = inner.iter().map(Expr::as_const).product::<Option<u64>>()?;
        let channels = last.as_const().unwrap_or(0);
        let stride = match last {
            Expr::Const(c) => Stride::Const(ty.dtype.row_bytes(c)),
            last => Stride::Symbolic(last * Expr::Const(ty.dtype.row_bytes(1))),
        };
        Some(View { lines, local, stride, ..View::lines_of(place, ty.dtype, channels) })
    }

    /// A state `[n_seqs, slots, c]`.
    pub fn state(place: Place, ty: &TensorType) -> View {
        View::lines_of(place, ty.dtype, ty.channels())
    }

    /// A weight `[n, k]`, `[experts, n, k]` or `[c]`.
    pub fn weight(place: Place, ty: &TensorType) -> View {
        let (n, k) = ty.matrix();
        let mut view = View::lines_of(place, ty.dtype, k);
        if let DType::Weight(format) = ty.dtype {
            let matrices: u64 = ty.shape.iter().rev().skip(2).filter_map(Expr::as_const).product();
            let tile = if let WeightFormat::Fp8 { tile } = format { u64::from(tile) } else { 1 };
            view.stride = Stride::Const(format.data_bytes(1, k));
            view.scales = Scales::Behind {
                start: matrices * format.data_bytes(n, k),
                lines: n,
                tile,
                per_line: format.scale_bytes(1, k),
            };
        }
        view
    }

    fn lines_of(place: Place, dtype: DType, channels: u64) -> View {
        let offset = if let DType::Packed(f) = dtype { f.data_bytes(channels) } else { 0 };
        View {
            place,
            codec: Codec::of(dtype),
            channels,
            lines: 1,
            local: false,
            stride: Stride::Const(dtype.row_bytes(channels)),
            scales: Scales::InLine { offset },
            part: None,
        }
    }

    /// The same with this many lines a row.
    pub fn with_lines(self, lines: u64) -> View {
        View { lines, ..self }
    }

    /// `lines` lines of each row, from line `first` on.
    pub fn slice(self, first: Var, lines: u64) -> View {
        View { part: Some((first, self.lines)), lines, ..self }
    }

    /// `n` lines of plain f32 in scratch.
    pub fn panel(place: Place, channels: u64) -> View {
        View::lines_of(place, DType::F32, channels)
    }

    /// Bytes of a row, where they are constant.
    pub fn row_bytes(&self) -> Option<u64> {
        match self.stride {
            Stride::Const(s) => Some(s * self.lines),
            Stride::Symbolic(_) => None,
        }
    }

    /// Elements of a row; 0 where symbolic.
    pub fn row_channels(&self) -> u64 {
        self.lines * self.channels
    }

    /// Whether the elements of consecutive lines follow each other.
    pub fn is_plain(&self) -> bool {
        self.codec.plain().is_some()
    }

    /// Whether elements are f32 one after the other.
    pub fn is_f32(&self) -> bool {
        self.codec.plain() == Some(Mem::F32)
    }

    /// Byte address of a line.
    pub fn address(&self, b: &mut Builder, line: Var) -> Var {
        match &self.stride {
            Stride::Const(s) => b.imul_c(line, *s as i64),
            Stride::Symbolic(e) => {
                let s = b.size(e);
                b.imul(line, s)
            }
        }
    }

    /// Line `line`, counted from the start.
    pub fn line(&self, b: &mut Builder, line: Var) -> Line {
        let data = self.address(b, line);
        let scale = match self.scales {
            Scales::InLine { offset: 0 } => data,
            Scales::InLine { offset } => b.iadd_c(data, offset as i64),
            Scales::Behind { start, lines, tile, per_line } => {
                let band = scale_band(b, line, lines, tile);
                let at = b.imul_c(band, per_line as i64);
                b.iadd_c(at, start as i64)
            }
        };
        Line { place: self.place, codec: self.codec, channels: self.channels, data, scale }
    }

    /// The lines of row `at`.
    pub fn row(&self, b: &mut Builder, at: At) -> Row {
        let row = if self.local { at.in_block } else { at.row };
        let first = match self.part {
            None => b.imul_c(row, self.lines as i64),
            Some((skipped, whole)) => {
                let first = b.imul_c(row, whole as i64);
                b.iadd(first, skipped)
            }
        };
        let line = self.line(b, first);
        Row { view: self.clone(), first, line }
    }
}

/// The line of scales that belongs to line `line`: matrices of `lines` lines have whole tiles of their own.
fn scale_band(b: &mut Builder, line: Var, lines: u64, tile: u64) -> Var {
    if tile <= 1 {
        return line;
    }
    if lines.is_multiple_of(tile) {
        return b.idiv_c(line, tile as i64);
    }
    let matrix = b.idiv_c(line, lines as i64);
    let row = b.irem_c(line, lines as i64);
    let band = b.idiv_c(row, tile as i64);
    let first = b.imul_c(matrix, lines.div_ceil(tile) as i64);
    b.iadd(first, band)
}

/// A row of the kernel.
#[derive(Debug, Clone, Copy)]
pub struct At {
    /// Counted from the start of the block.
    pub in_block: Var,
    /// Counted from the first row of all.
    pub row: Var,
}

/// The lines of one row.
#[derive(Debug, Clone)]
pub struct Row {
    view: View,
    first: Var,
    line: Line,
}

impl Row {
    /// Line `i` of the row.
    pub fn line(&self, b: &mut Builder, i: Var) -> Line {
        if b.known(i) == Some(0) {
            return self.line;
        }
        let line = b.iadd(self.first, i);
        self.view.line(b, line)
    }

    /// Memory and byte address of the row.
    pub fn address(&self) -> (Place, Var) {
        (self.line.place, self.line.data)
    }

    /// Element `j` of the flattened row.
    pub fn load(&self, b: &mut Builder, j: Var) -> Var {
        let (line, j) = self.split(b, j);
        line.load(b, j)
    }

    /// Writes element `j` of the flattened row, of a plain value.
    pub fn store(&self, b: &mut Builder, j: Var, value: Var) {
        self.line.store(b, j, value);
    }

    fn split(&self, b: &mut Builder, j: Var) -> (Line, Var) {
        if self.view.lines == 1 || self.view.is_plain() {
            return (self.line, j);
        }
        let i = b.idiv_c(j, self.view.channels as i64);
        let j = b.irem_c(j, self.view.channels as i64);
        (self.line(b, i), j)
    }
}

/// One line: its addresses are known.
#[derive(Debug, Clone, Copy)]
pub struct Line {
    /// Memory.
    pub place: Place,
    /// Storage.
    pub codec: Codec,
    /// Channels; 0 where symbolic.
    pub channels: u64,
    /// Byte address of the data.
    pub data: Var,
    /// Byte address of the scales.
    pub scale: Var,
}

impl Line {
    /// Channel `j`.
    pub fn load(&self, b: &mut Builder, j: Var) -> Var {
        if self.codec.tail == 0 {
            return self.load_one(b, self.codec.coding, self.data, j);
        }
        match self.codec.parts(self.channels).as_slice() {
            [head, tail] => self.load_either(b, head, tail, j),
            _ => self.load_one(b, BF16, self.data, j),
        }
    }

    /// Reads both parts, at channels that exist in them.
    fn load_either(&self, b: &mut Builder, head: &Part, tail: &Part, j: Var) -> Var {
        let (split, last, zero) = (b.int(head.channels), b.int(head.channels - 1), b.int(0));
        let (low, high) = (b.i(IOp::Min, j, last), b.isub(j, split));
        let high = b.i(IOp::Max, high, zero);
        let code = self.load_one(b, head.coding, self.data, low);
        let data = b.iadd_c(self.data, tail.offset as i64);
        let half = self.load_one(b, tail.coding, data, high);
        let is_code = b.cmp(Cmp::Lt, j, split);
        b.select(is_code, code, half)
    }

    fn load_one(&self, b: &mut Builder, coding: Coding, data: Var, j: Var) -> Var {
        match coding {
            Coding::Plain(mem) => {
                let at = element(b, data, j, mem);
                b.load(self.place, at, mem)
            }
            Coding::E4m3 { group } => {
                let scale = self.load_scale(b, j, group, Scale::Fp8);
                let at = b.iadd(data, j);
                let code = b.load(self.place, at, Mem::U8);
                let x = codec::e4m3_decode(b, code);
                b.fmul(x, scale)
            }
            Coding::E2m1 { group, scale } => {
                let scale = self.load_scale(b, j, group, scale);
                let byte = b.idiv_c(j, 2);
                let at = b.iadd(data, byte);
                let pair = b.load(self.place, at, Mem::U8);
                let odd = codec::int_c(b, IOp::And, j, 1);
                let shift = codec::int_c(b, IOp::Shl, odd, 2);
                let code = b.i(IOp::Shr, pair, shift);
                let x = codec::e2m1_decode(b, code);
                b.fmul(x, scale)
            }
        }
    }

    /// Channels `j .. j + n` of a part, counted from its start, for `n` that divides its groups (and is even
    /// where two channels share a byte) and `j` a multiple of `n`.
    pub fn load_run(&self, b: &mut Builder, part: &Part, j: Var, n: u64, tables: &Tables) -> Vec<Var> {
        let data = b.iadd_c(self.data, part.offset as i64);
        match part.coding {
            Coding::Plain(mem) => {
                let at = element(b, data, j, mem);
                (0..n).map(|i| load_at(b, self.place, at, i * mem.bytes(), mem)).collect()
            }
            Coding::E4m3 { group } => {
                let scale = self.load_scale(b, j, group, Scale::Fp8);
                let at = b.iadd(data, j);
                let mut run = Vec::new();
                for i in 0..n {
                    let code = load_at(b, self.place, at, i, Mem::U8);
                    let x = tables.e4m3(b, code);
                    run.push(b.fmul(x, scale));
                }
                run
            }
            Coding::E2m1 { group, scale } => {
                let scale = self.load_scale(b, j, group, scale);
                self.load_nibbles(b, data, (j, n), scale, tables)
            }
        }
    }

    fn load_scale(&self, b: &mut Builder, j: Var, group: u64, scale: Scale) -> Var {
        let g = b.idiv_c(j, group as i64);
        let at = b.iadd(self.scale, g);
        let code = b.load(self.place, at, Mem::U8);
        scale.decode(b, code)
    }

    fn load_nibbles(&self, b: &mut Builder, data: Var, (j, n): (Var, u64), scale: Var, tables: &Tables) -> Vec<Var> {
        let byte = b.idiv_c(j, 2);
        let at = b.iadd(data, byte);
        let mut run = Vec::new();
        for i in 0..n / 2 {
            let byte = load_at(b, self.place, at, i, Mem::U8);
            let pair = tables.e2m1(b, byte);
            run.extend(pair.map(|x| b.fmul(x, scale)));
        }
        run
    }

    /// Writes channel `j` of a plain line, rounding.
    pub fn store(&self, b: &mut Builder, j: Var, value: Var) {
        if let Some(mem) = self.codec.plain() {
            let at = element(b, self.data, j, mem);
            b.store(self.place, at, mem, value);
        }
    }
}

fn element(b: &mut Builder, data: Var, j: Var, mem: Mem) -> Var {
    let offset = b.imul_c(j, mem.bytes() as i64);
    b.iadd(data, offset)
}

fn load_at(b: &mut Builder, place: Place, at: Var, offset: u64, mem: Mem) -> Var {
    let at = b.iadd_c(at, offset as i64);
    b.load(place, at, mem)
}
