//! The arithmetic of the emulator: PTX instructions that make one value of values.

use super::emulator::{bits, mask};

fn f(v: u64) -> f32 {
    f32::from_bits(v as u32)
}

fn d(v: u64) -> f64 {
    f64::from_bits(v)
}

fn f_out(x: f32) -> u64 {
    u64::from(x.to_bits())
}

fn signed(v: u64, width: usize) -> i64 {
    (v << (64 - width)) as i64 >> (64 - width)
}

/// Value of an instruction.
pub fn compute(op: &[&str], a: &[u64], text: &str) -> u64 {
    let ty = *op.last().unwrap();
    match (op[0], ty.as_bytes()[0]) {
        ("setp", b'f') => u64::from(compare_floats(op[1], ty, a)),
        ("setp", _) => u64::from(compare_ints(op[1], ty, a)),
        ("selp", _) => {
            if a[2] & 1 == 1 {
                a[0]
            } else {
                a[1]
            }
        }
        ("cvt", _) => convert(op, a, text),
        ("mov", _) => a[0],
        (_, b'f') => floats(op, ty, a, text),
        _ => ints(op, ty, a, text),
    }
}

fn compare_floats(how: &str, ty: &str, a: &[u64]) -> bool {
    let (x, y) = if ty == "f64" { (d(a[0]), d(a[1])) } else { (f64::from(f(a[0])), f64::from(f(a[1]))) };
    let unordered = x.is_nan() || y.is_nan();
    match how {
        "eq" => x == y,
        "ne" => !unordered && x != y,
        "lt" => x < y,
        "le" => x <= y,
        "gt" => x > y,
        "ge" => x >= y,
        "num" => !unordered,
        "nan" => unordered,
        "equ" => unordered || x == y,
        "neu" => unordered || x != y,
        "ltu" => unordered || x < y,
        "leu" => unordered || x <= y,
        "gtu" => unordered || x > y,
        "geu" => unordered || x >= y,
        other => panic!("comparison {other}"),
    }
}

fn compare_ints(how: &str, ty: &str, a: &[u64]) -> bool {
    let width = bits(ty);
    let (x, y) = (a[0] & mask(width), a[1] & mask(width));
    let order = if ty.starts_with('s') { signed(x, width).cmp(&signed(y, width)) } else { x.cmp(&y) };
    match how {
        "eq" => order.is_eq(),
        "ne" => order.is_ne(),
        "lt" | "lo" => order.is_lt(),
        "le" | "ls" => order.is_le(),
        "gt" | "hi" => order.is_gt(),
        "ge" | "hs" => order.is_ge(),
        other => panic!("comparison {other}"),
    }
}

fn floats(op: &[&str], ty: &str, a: &[u64], text: &str) -> u64 {
    if ty == "f64" {
        let y = match op[0] {
            "add" => d(a[0]) + d(a[1]),
            "sub" => d(a[0]) - d(a[1]),
            "mul" => d(a[0]) * d(a[1]),
            "fma" => d(a[0]).mul_add(d(a[1]), d(a[2])),
            "neg" => -d(a[0]),
            _ => panic!("unknown instruction: {text}"),
        };
        return y.to_bits();
    }
    let rounds = matches!(op[0], "add" | "sub" | "mul" | "div" | "fma" | "sqrt" | "rcp");
    assert!(!rounds || op[1..] == ["rn", "f32"], "not rounded to nearest: {text}");
    f_out(match op[0] {
        "add" => f(a[0]) + f(a[1]),
        "sub" => f(a[0]) - f(a[1]),
        "mul" => f(a[0]) * f(a[1]),
        "div" => f(a[0]) / f(a[1]),
        "fma" => f(a[0]).mul_add(f(a[1]), f(a[2])),
        "sqrt" => f(a[0]).sqrt(),
        "rcp" => 1.0 / f(a[0]),
        "neg" => -f(a[0]),
        "abs" => f(a[0]).abs(),
        "min" => f(a[0]).min(f(a[1])),
        "max" => f(a[0]).max(f(a[1])),
        // The sign of the first, the rest of the second.
        "copysign" => f(a[1]).copysign(f(a[0])),
        _ => panic!("unknown instruction: {text}"),
    })
}

/// Four of eight bytes, each chosen by four bits: its number, and whether its sign is spread over it.
fn permute(bytes: u64, choice: u64) -> u64 {
    let byte = |i: u64| {
        let chosen = choice >> (4 * i) & 15;
        let byte = bytes >> (8 * (chosen & 7)) & 0xFF;
        let spread = if byte & 0x80 == 0 { 0 } else { 0xFF };
        if chosen & 8 == 0 { byte } else { spread }
    };
    (0..4).map(|i| byte(i) << (8 * i)).sum()
}

fn ints(op: &[&str], ty: &str, a: &[u64], text: &str) -> u64 {
    let width = bits(ty);
    let m = mask(width);
    let (x, y) = (a[0] & m, a.get(1).map_or(0, |v| v & m));
    let (sx, sy) = (signed(x, width), signed(y, width));
    let is_signed = ty.starts_with('s');
    let by = |v: u64| v.min(64) as u32;
    let value = match (op[0], op[1]) {
        ("add", _) => x.wrapping_add(y),
        ("sub", _) => x.wrapping_sub(y),
        ("mul", "wide") if is_signed => return (sx.wrapping_mul(sy)) as u64 & mask(2 * width),
        ("mul", "wide") => return x.wrapping_mul(y) & mask(2 * width),
        ("mad", "wide") if is_signed => return (sx.wrapping_mul(sy) as u64).wrapping_add(a[2]) & mask(2 * width),
        ("mad", "wide") => return x.wrapping_mul(y).wrapping_add(a[2]) & mask(2 * width),
        ("mul", "hi") if is_signed => ((i128::from(sx) * i128::from(sy)) >> width) as u64,
        ("mul", "hi") => ((u128::from(x) * u128::from(y)) >> width) as u64,
        ("mul", "lo") => x.wrapping_mul(y),
        ("mad", "lo") => x.wrapping_mul(y).wrapping_add(a[2]),
        ("div", _) if is_signed => sx.wrapping_div(sy) as u64,
        ("rem", _) if is_signed => sx.wrapping_rem(sy) as u64,
        ("div", _) => x / y,
        ("rem", _) => x % y,
        ("min", _) => {
            if is_signed {
                sx.min(sy) as u64
            } else {
                x.min(y)
            }
        }
        ("max", _) => {
            if is_signed {
                sx.max(sy) as u64
            } else {
                x.max(y)
            }
        }
        ("prmt", _) => permute(y << 32 | x, a[2]),
        ("and", _) => x & y,
        ("or", _) => x | y,
        ("xor", _) => x ^ y,
        ("not", _) => !x,
        ("neg", _) => x.wrapping_neg(),
        ("abs", _) => sx.unsigned_abs(),
        ("shl", _) => x.checked_shl(by(a[1])).unwrap_or(0),
        ("shr", _) if is_signed => (sx >> a[1].min(63)) as u64,
        ("shr", _) => x.checked_shr(by(a[1])).unwrap_or(0),
        ("bfe", _) => {
            let field = (x >> a[1].min(63)) & mask(a[2] as usize);
            if is_signed { signed(field, a[2] as usize) as u64 } else { field }
        }
        _ => panic!("unknown instruction: {text}"),
    };
    value & m
}

fn bf16(x: f32) -> u64 {
    u64::from(if x.is_nan() { 0x7FFF } else { dsc_ir::format::bf16_round(x).to_bits() >> 16 })
}

fn convert(op: &[&str], a: &[u64], text: &str) -> u64 {
    match op[1..] {
        ["rn", "bf16", "f32"] => bf16(f(a[0])),
        ["rn", "bf16x2", "f32"] => bf16(f(a[0])) << 16 | bf16(f(a[1])),
        ["rni", "f32", "f32"] => f_out(f(a[0]).round_ties_even()),
        ["rni", "f64", "f64"] => d(a[0]).round_ties_even().to_bits(),
        ["rzi", "s32", "f32"] => u64::from(f(a[0]) as i32 as u32),
        ["rzi", "s64", "f64"] => d(a[0]) as i64 as u64,
        ["f64", "f32"] => f64::from(f(a[0])).to_bits(),
        ["rn", "f32", "f64"] => f_out(d(a[0]) as f32),
        ["rn", "f32", from] if from.starts_with('s') => f_out(signed(a[0], bits(from)) as f32),
        ["rn", "f32", from] => f_out((a[0] & mask(bits(from))) as f32),
        ["rn", "f64", from] if from.starts_with('s') => (signed(a[0], bits(from)) as f64).to_bits(),
        [to, from] if !to.starts_with('f') && !from.starts_with('f') => {
            let wide = if from.starts_with('s') { signed(a[0], bits(from)) as u64 } else { a[0] & mask(bits(from)) };
            wide & mask(bits(to))
        }
        _ => panic!("unknown instruction: {text}"),
    }
}
