//! Runs the PTX that this backend writes, on the host: the part of the language that it uses, one block at a time.
//!
//! A thread runs until it meets a barrier or a shuffle, then the next one does; `Order` says which goes first. A
//! kernel that lacks a barrier gives other results in the other order. Accesses outside a buffer, unknown
//! instructions, and threads that wait at different places end the test.

use std::collections::HashMap;

/// Which thread of a block runs first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    Ascending,
    Descending,
}

/// Addresses of buffer `i` start at `(i + 1) << BUFFER_SHIFT`.
const BUFFER_SHIFT: u32 = 40;
/// Address of the block's shared memory.
const SHARED_AT: u64 = 0x100;

#[derive(Debug, Clone)]
enum Operand {
    Reg(usize),
    Imm(u64),
    /// Several registers in braces.
    List(Vec<Operand>),
    /// `[base + offset]`.
    Memory(Box<Operand>, i64),
    Param(usize),
    Label(String),
    Special(String),
}

#[derive(Debug, Clone)]
struct Inst<'p> {
    guard: Option<(usize, bool)>,
    op: Vec<&'p str>,
    args: Vec<Operand>,
    text: &'p str,
}

/// A parsed kernel.
pub struct Program<'p> {
    insts: Vec<Inst<'p>>,
    labels: HashMap<String, usize>,
    n_regs: usize,
    n_params: usize,
    static_smem: u64,
}

struct Thread {
    regs: Vec<u64>,
    at: usize,
    state: State,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Ready,
    AtBarrier,
    /// Value and lane mask of a butterfly shuffle.
    AtShuffle(u64, u64),
    Done,
}

/// A launch.
pub struct Launch<'a> {
    pub grid: [u32; 3],
    pub threads: u32,
    pub smem_dynamic: u64,
    pub dims: [u64; 5],
    pub buffers: &'a mut [Vec<u8>],
    pub order: Order,
}

struct Block<'a> {
    program: &'a Program<'a>,
    id: [u32; 3],
    shared: Vec<u8>,
    buffers: &'a mut [Vec<u8>],
    dims: [u64; 5],
}

impl<'p> Program<'p> {
    pub fn parse(ptx: &'p str) -> Program<'p> {
        let mut p = Program { insts: Vec::new(), labels: HashMap::new(), n_regs: 0, n_params: 0, static_smem: 0 };
        let mut names: HashMap<String, usize> = HashMap::new();
        let mut shared = String::new();
        let mut inside = false;
        for line in ptx.lines() {
            let line = line.split("//").next().unwrap().trim().trim_end_matches(';');
            // A move with a register of its own: `{ .reg .b32 tmp; mov.b64 {tmp, %r1}, %rd1; }`.
            let own = line.strip_prefix("{ .reg").and_then(|l| l.split_once("; "));
            let line = own.map_or(line, |(_, l)| l.trim_end_matches(['}', ' ']).trim_end_matches(';'));
            if line.contains(".shared .align") {
                let decl = line.rsplit(' ').next().unwrap();
                let (name, size) = decl.split_once('[').unwrap();
                shared = name.into();
                p.static_smem = size.trim_end_matches(']').parse().unwrap_or(0);
            } else if line.starts_with(".param") {
                p.n_params += 1;
            } else if line == "{" {
                inside = true;
            } else if let Some(label) = line.strip_suffix(':') {
                p.labels.insert(label.into(), p.insts.len());
            } else if inside && !line.is_empty() && !line.starts_with(['.', '}']) {
                let inst = parse_inst(line, &shared, &mut names);
                p.insts.push(inst);
            }
        }
        p.n_regs = names.len();
        p
    }

    pub fn run(&self, launch: &mut Launch<'_>) {
        let [x, y, z] = launch.grid;
        for id in (0..z).flat_map(|k| (0..y).flat_map(move |j| (0..x).map(move |i| [i, j, k]))) {
            // Left-over contents of another block.
            let shared = vec![0xFF; (self.static_smem + launch.smem_dynamic) as usize];
            let mut block = Block { program: self, id, shared, buffers: launch.buffers, dims: launch.dims };
            block.run(launch.threads as usize, launch.order);
        }
    }
}

fn parse_inst<'p>(line: &'p str, shared: &str, names: &mut HashMap<String, usize>) -> Inst<'p> {
    let (guard, rest) = match line.strip_prefix('@') {
        Some(rest) => {
            let (name, rest) = rest.split_once(char::is_whitespace).unwrap();
            let (negated, name) = name.strip_prefix('!').map_or((false, name), |n| (true, n));
            (Some((reg(name, names), negated)), rest.trim())
        }
        None => (None, line),
    };
    let (op, args) = rest.split_once(char::is_whitespace).unwrap_or((rest, ""));
    let op = op.split('.').collect();
    let args = split(args).iter().map(|a| parse_operand(a, shared, names)).collect();
    Inst { guard, op, args, text: line }
}

/// Splits at commas outside braces and brackets.
fn split(text: &str) -> Vec<String> {
    let (mut out, mut depth) = (vec![String::new()], 0);
    for c in text.chars() {
        depth += i32::from(matches!(c, '{' | '[')) - i32::from(matches!(c, '}' | ']'));
        if c == ',' && depth == 0 {
            out.push(String::new());
        } else {
            out.last_mut().unwrap().push(c);
        }
    }
    out.into_iter().map(|s| s.trim().to_owned()).filter(|s| !s.is_empty()).collect()
}

fn reg(name: &str, names: &mut HashMap<String, usize>) -> usize {
    let next = names.len();
    *names.entry(name.into()).or_insert(next)
}

fn parse_operand(text: &str, shared: &str, names: &mut HashMap<String, usize>) -> Operand {
    if let Some(inner) = text.strip_prefix('{').and_then(|t| t.strip_suffix('}')) {
        return Operand::List(split(inner).iter().map(|t| parse_operand(t, shared, names)).collect());
    }
    if let Some(inner) = text.strip_prefix('[').and_then(|t| t.strip_suffix(']')) {
        let (base, offset) = match inner.rsplit_once('+') {
            Some((base, offset)) => (base, offset.parse().unwrap()),
            None => (inner, 0),
        };
        return Operand::Memory(Box::new(parse_operand(base, shared, names)), offset);
    }
    if text.starts_with("%tid") || text.starts_with("%ctaid") {
        return Operand::Special(text.into());
    }
    if text.starts_with('%') || text == "tmp" || text == "_" {
        return Operand::Reg(reg(text, names));
    }
    if let Some(bits) = text.strip_prefix("0f").or_else(|| text.strip_prefix("0d")).or_else(|| text.strip_prefix("0x"))
    {
        return Operand::Imm(u64::from_str_radix(bits.trim_end_matches('U'), 16).unwrap());
    }
    if let Ok(value) = text.parse::<i64>() {
        return Operand::Imm(value as u64);
    }
    if let Ok(value) = text.parse::<u64>() {
        return Operand::Imm(value);
    }
    if text == shared {
        return Operand::Imm(SHARED_AT);
    }
    if let Some((_, number)) = text.rsplit_once("_param_") {
        return Operand::Param(number.parse().unwrap());
    }
    Operand::Label(text.into())
}

impl Block<'_> {
    fn run(&mut self, n: usize, order: Order) {
        let new = || Thread { regs: vec![0; self.program.n_regs], at: 0, state: State::Ready };
        let mut threads: Vec<Thread> = (0..n).map(|_| new()).collect();
        loop {
            for i in 0..n {
                let i = if order == Order::Ascending { i } else { n - 1 - i };
                while threads[i].state == State::Ready {
                    self.step(&mut threads[i], i as u32);
                }
            }
            if threads.iter().all(|t| t.state == State::Done) {
                return;
            }
            if threads.iter().all(|t| t.state == State::AtBarrier) {
                let at = threads[0].at;
                assert!(threads.iter().all(|t| t.at == at), "threads wait at different barriers");
                threads.iter_mut().for_each(|t| t.state = State::Ready);
                continue;
            }
            let mut moved = false;
            for warp in threads.chunks_mut(32) {
                moved |= self.shuffle(warp);
            }
            assert!(moved, "threads wait for each other: {:?}", threads.iter().map(|t| t.state).collect::<Vec<_>>());
        }
    }

    fn shuffle(&self, warp: &mut [Thread]) -> bool {
        let values: Vec<_> = warp.iter().map(|t| t.state).collect();
        if !values.iter().all(|s| matches!(s, State::AtShuffle(..))) {
            return false;
        }
        for (lane, thread) in warp.iter_mut().enumerate() {
            let State::AtShuffle(_, mask) = values[lane] else { unreachable!() };
            let State::AtShuffle(value, _) = values[lane ^ mask as usize] else { unreachable!() };
            let inst = &self.program.insts[thread.at - 1];
            set(thread, &inst.args[0], value);
            thread.state = State::Ready;
        }
        true
    }

    fn get(&self, t: &Thread, id: u32, o: &Operand) -> u64 {
        match o {
            Operand::Reg(r) => t.regs[*r],
            Operand::Imm(v) => *v,
            Operand::Special(s) => match s.as_str() {
                "%tid.x" => u64::from(id),
                "%ctaid.x" => u64::from(self.id[0]),
                "%ctaid.y" => u64::from(self.id[1]),
                other => panic!("special register {other}"),
            },
            Operand::Param(i) => {
                let n_buffers = self.program.n_params - self.dims.len();
                if *i < n_buffers { (*i as u64 + 1) << BUFFER_SHIFT } else { self.dims[*i - n_buffers] }
            }
            Operand::Memory(base, offset) => self.get(t, id, base).wrapping_add(*offset as u64),
            other => panic!("no value: {other:?}"),
        }
    }

    fn memory(&mut self, space: &str, at: u64, bytes: usize, text: &str) -> &mut [u8] {
        let (memory, offset) = match space {
            "shared" => (&mut self.shared, at.wrapping_sub(SHARED_AT)),
            _ => {
                let i = (at >> BUFFER_SHIFT) as usize;
                let offset = at & ((1 << BUFFER_SHIFT) - 1);
                assert!(i >= 1 && i <= self.buffers.len(), "wild address {at:#x}: {text}");
                (&mut self.buffers[i - 1], offset)
            }
        };
        let offset = offset as usize;
        let size = memory.len();
        assert!(offset.checked_add(bytes).is_some_and(|end| end <= size), "byte {offset} of {size}: {text}");
        assert!(offset.is_multiple_of(bytes), "byte {offset} is not aligned: {text}");
        &mut memory[offset..offset + bytes]
    }

    fn step(&mut self, t: &mut Thread, id: u32) {
        let program = self.program;
        let inst = &program.insts[t.at];
        t.at += 1;
        if let Some((p, negated)) = inst.guard
            && (t.regs[p] & 1 == 1) == negated
        {
            return;
        }
        let op = &inst.op;
        match op[0] {
            "bra" => {
                let Operand::Label(label) = &inst.args[0] else { panic!("{}", inst.text) };
                t.at = program.labels[label];
            }
            "bar" => t.state = State::AtBarrier,
            "shfl" => {
                let (value, mask) = (self.get(t, id, &inst.args[1]), self.get(t, id, &inst.args[2]));
                t.state = State::AtShuffle(value, mask);
            }
            "ret" => t.state = State::Done,
            "ld" if op[1] == "param" => set(t, &inst.args[0], self.get(t, id, memory_base(&inst.args[1]))),
            "ld" => {
                let (width, at) = (bits(op.last().unwrap()) / 8, self.get(t, id, &inst.args[1]));
                let lanes: Vec<&Operand> = lanes(&inst.args[0]);
                let bytes = self.memory(op[1], at, width * lanes.len(), inst.text).to_vec();
                for (lane, chunk) in lanes.into_iter().zip(bytes.chunks(width)) {
                    set(t, lane, chunk.iter().rev().fold(0, |v, b| v << 8 | u64::from(*b)));
                }
            }
            "st" => {
                let (width, at) = (bits(op.last().unwrap()) / 8, self.get(t, id, &inst.args[0]));
                let values: Vec<u64> = lanes(&inst.args[1]).into_iter().map(|o| self.get(t, id, o)).collect();
                let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()[..width].to_vec()).collect();
                self.memory(op[1], at, bytes.len(), inst.text).copy_from_slice(&bytes);
            }
            "mov" if matches!(inst.args[0], Operand::List(_)) => {
                let value = self.get(t, id, &inst.args[1]);
                let parts = lanes(&inst.args[0]);
                let width = bits(op[1]) / parts.len();
                for (i, part) in parts.into_iter().enumerate() {
                    set(t, part, value >> (i * width) & mask(width));
                }
            }
            "mov" if matches!(inst.args[1], Operand::List(_)) => {
                let parts = lanes(&inst.args[1]);
                let width = bits(op[1]) / parts.len();
                let joined = parts.iter().enumerate().map(|(i, o)| (self.get(t, id, o) & mask(width)) << (i * width));
                let value = joined.fold(0, |a, b| a | b);
                set(t, &inst.args[0], value);
            }
            _ => {
                let mut args = [0; 4];
                for (value, o) in args.iter_mut().zip(&inst.args[1..]) {
                    *value = self.get(t, id, o);
                }
                set(t, &inst.args[0], super::scalar::compute(op, &args, inst.text));
            }
        }
    }
}

fn memory_base(o: &Operand) -> &Operand {
    match o {
        Operand::Memory(base, 0) => base,
        other => panic!("parameter {other:?}"),
    }
}

fn lanes(o: &Operand) -> Vec<&Operand> {
    match o {
        Operand::List(v) => v.iter().collect(),
        one => vec![one],
    }
}

fn set(t: &mut Thread, o: &Operand, value: u64) {
    match o {
        Operand::Reg(r) => t.regs[*r] = value,
        other => panic!("cannot be set: {other:?}"),
    }
}

/// Width of a type such as `b32`; predicates are one bit.
pub fn bits(ty: &str) -> usize {
    if ty == "pred" { 1 } else { ty[1..].parse().unwrap_or_else(|_| panic!("type {ty}")) }
}

/// The low `width` bits.
pub fn mask(width: usize) -> u64 {
    if width >= 64 { u64::MAX } else { (1 << width) - 1 }
}
