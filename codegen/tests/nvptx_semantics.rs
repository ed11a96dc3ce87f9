//! What the emitted PTX computes, run by an emulator on the host: row kernels against the loop programs they come
//! from, gemm kernels against the interpreter of the op graph. Blocks run twice, with the threads in both orders,
//! which must not matter.
#![cfg(feature = "nvptx")]
#![allow(clippy::unwrap_used, clippy::panic)] // helpers of tests

mod nvptx_common;

use dsc_codegen::loops::Func;
use dsc_codegen::nvptx::GpuKernel;
use dsc_codegen::nvptx::gemm::{GemmDesc, GemmPlan, RowsHint, emit_gemm};
use dsc_codegen::nvptx::row::{RowPlan, emit_row};
use dsc_ir::dtype::{DType, RowFormat, WeightFormat};
use dsc_ir::expr::{Env, Expr};
use dsc_ir::graph::ValueId;
use dsc_ir::interp::{self, Array, Values};
use dsc_ir::kernel::{Kernel, Role};
use nvptx_common::emulator::{Launch, Order, Program};
use nvptx_common::kernels::{group_linear, linear};
use nvptx_common::{eval, programs, target};

/// Contents of a kernel's parameters.
type Buffers = Vec<Vec<u8>>;

/// A small generator of repeatable numbers (Marsaglia's xorshift).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// Between -1 and 1.
    fn float(&mut self) -> f32 {
        (self.next() >> 40) as f32 / 8_388_608.0 - 1.0
    }

    fn floats(&mut self, n: usize, scale: f32) -> Vec<f32> {
        (0..n).map(|_| self.float() * scale).collect()
    }
}

fn f32_bytes(v: &[f32]) -> Vec<u8> {
    v.iter().flat_map(|x| x.to_le_bytes()).collect()
}

fn bf16_bytes(v: &[f32]) -> Vec<u8> {
    v.iter().flat_map(|x| ((dsc_ir::format::bf16_round(*x).to_bits() >> 16) as u16).to_le_bytes()).collect()
}

fn f32_of(bytes: &[u8]) -> Vec<f32> {
    bytes.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect()
}

fn bf16_of(bytes: &[u8]) -> Vec<f32> {
    bytes.chunks_exact(2).map(|b| f32::from_bits(u32::from(u16::from_le_bytes([b[0], b[1]])) << 16)).collect()
}

/// Runs a kernel in both orders and gives its buffers.
fn emulate(kernel: &GpuKernel, dims: Env, buffers: &[Vec<u8>]) -> Buffers {
    let [up, down] = emulate_both(kernel, dims, buffers);
    assert!(up == down, "{}: the order of threads matters", kernel.symbol);
    up
}

fn emulate_both(kernel: &GpuKernel, dims: Env, buffers: &[Vec<u8>]) -> [Buffers; 2] {
    let program = Program::parse(&kernel.ptx);
    [Order::Ascending, Order::Descending].map(|order| {
        let mut buffers = buffers.to_vec();
        let grid = [0, 1, 2].map(|i: usize| kernel.grid[i].eval(&dims) as u32);
        program.run(&mut Launch {
            grid,
            threads: kernel.threads,
            smem_dynamic: kernel.smem_dynamic_bytes,
            dims: dims.dims(),
            buffers: &mut buffers,
            order,
        });
        buffers
    })
}

fn env(n_tokens: u64) -> Env {
    Env { n_tokens, n_seqs: 1, n_context: 8, n_out_rows: 1, n_tail_rows: 0 }
}

/// Runs a row program on the host and as PTX for two architectures.
fn both(func: &Func, rows: u64, inputs: &[Vec<u8>]) -> Vec<(Buffers, Buffers)> {
    let mut want = inputs.to_vec();
    eval::run(func, rows, [rows, 1, 8, 1, 0], &mut want);
    let one = |arch| {
        let target = target(arch);
        let plan = RowPlan::new(func, Expr::tokens(), &target).unwrap();
        let kernel = emit_row(func, &target, &plan).unwrap();
        (want.clone(), emulate(&kernel, env(rows), inputs))
    };
    vec![one("sm_75"), one("sm_90a")]
}

fn assert_close(name: &str, want: &[f32], got: &[f32], relative: f32, absolute: f32) {
    for (i, (w, g)) in want.iter().zip(got).enumerate() {
        let near = (w - g).abs() <= relative * w.abs() + absolute;
        assert!(near || w == g || (w.is_nan() && g.is_nan()), "{name}[{i}] is {g}, not {w}");
    }
}

#[test]
fn rms_norm() {
    for hidden in [136, 3000] {
        let mut r = Random(7);
        let n = hidden as usize;
        let x = bf16_bytes(&r.floats(3 * n, 4.0));
        let inputs = [x, f32_bytes(&r.floats(n, 1.0)), vec![0xFF; 3 * n * 2]];
        for (want, got) in both(&programs::rms_norm(hidden), 3, &inputs) {
            // Sums in another order may round one bf16 differently.
            assert_close("y", &bf16_of(&want[2]), &bf16_of(&got[2]), 1.0 / 128.0, 0.0);
        }
    }
}

#[test]
fn softmax() {
    for n in [24, 1000] {
        let mut r = Random(11);
        let size = n as usize * 2;
        let inputs = [f32_bytes(&r.floats(size, 30.0)), vec![0xFF; size * 4], vec![0xFF; 8]];
        for (want, got) in both(&programs::softmax(n), 2, &inputs) {
            assert_close("y", &f32_of(&want[1]), &f32_of(&got[1]), 1e-6, 1e-38);
            assert_eq!(want[2], got[2]);
        }
    }
}

#[test]
fn top_k_with_ties() {
    let mut r = Random(13);
    let mut scores: Vec<f32> = (0..900).map(|_| (r.next() % 40) as f32 - 20.0).collect();
    // A row with fewer values than are asked for.
    scores[300..600].fill(f32::NEG_INFINITY);
    scores[310] = -5.0;
    scores[599] = -5.0;
    let inputs = [f32_bytes(&scores), vec![0xFF; 3 * 6 * 4]];
    for (want, got) in both(&programs::top_k(300, 6), 3, &inputs) {
        assert_eq!(want[1], got[1]);
    }
}

#[test]
fn uniform_loads_and_stores() {
    let mut r = Random(17);
    let inputs = [f32_bytes(&r.floats(4 * 17, 1.0)), vec![0xFF; (4 * 17 + 4) * 4]];
    for (want, got) in both(&programs::running_sum(17), 4, &inputs) {
        assert_eq!(want[1], got[1]);
    }
}

#[test]
fn functions() {
    let mut x = vec![0.0, -0.0, 1.0, -1.0, 0.5, 2.5, -2.5, 88.0, -87.5, -103.0, 1e-40, -1e-40, 1e30, f32::INFINITY];
    x.extend([f32::NEG_INFINITY, f32::NAN, 3.0e8, -3.0e8, 1e6, 16_777_216.0]);
    let mut r = Random(19);
    x.extend(r.floats(129 - x.len(), 50.0));
    let inputs = [f32_bytes(&x), vec![0xFF; 129 * 10 * 4]];
    for (want, got) in both(&programs::functions(129), 1, &inputs) {
        let (want, got) = (f32_of(&want[1]), f32_of(&got[1]));
        for (i, name) in ["neg", "abs", "sqrt", "exp", "log1p", "sin", "cos", "rint", "fma", "int"].iter().enumerate() {
            let (want, got) = (&want[i * 129..][..129], &got[i * 129..][..129]);
            let (relative, absolute) = match *name {
                "exp" | "log1p" => (2.4e-7, 1e-44),
                "sin" | "cos" => (0.0, 1.2e-7),
                _ => (0.0, 0.0),
            };
            assert_close(name, want, got, relative, absolute);
        }
    }
}

#[test]
fn byte_codes() {
    let mut r = Random(23);
    let inputs = [f32_bytes(&r.floats(2 * 416, 300.0)), vec![0xFF; 2 * (416 + 13)]];
    for (want, got) in both(&programs::byte_codes(416), 2, &inputs) {
        assert_eq!(want[1], got[1]);
    }
}

const FP8_ROWS: DType = DType::Packed(RowFormat::Fp8);
const FP8: DType = DType::Weight(WeightFormat::Fp8 { tile: 32 });
const FP4: DType = DType::Weight(WeightFormat::Fp4);

/// A random array of this type: floats packed, and weights of random codes with scales about 1.
fn random_array(r: &mut Random, dtype: DType, shape: &[usize]) -> Array {
    let DType::Weight(format) = dtype else {
        let x = r.floats(shape.iter().product(), 2.0);
        return Array::from_floats(dtype, shape, x).unwrap();
    };
    let (n, k) = (shape[0] as u64, shape[1] as u64);
    let data = (0..format.data_bytes(n, k)).map(|_| {
        let byte = r.next() as u8;
        if byte & 0x7F == 0x7F { 0 } else { byte }
    });
    let mut bytes: Vec<u8> = data.collect();
    bytes.extend((0..format.scale_bytes(n, k)).map(|_| 118 + (r.next() % 6) as u8));
    Array::from_storage(dtype, shape, &bytes).unwrap()
}

/// Runs a gemm by the interpreter and as PTX.
fn check_gemm(kernel: &Kernel, rows: u64, hint: RowsHint) {
    let mut r = Random(29);
    let dims = env(rows);
    let shape =
        |v: ValueId| -> Vec<usize> { kernel.graph.ty(v).shape.iter().map(|e| e.eval(&dims) as usize).collect() };
    let mut values = Values::new();
    let mut buffers = Vec::new();
    for p in &kernel.params {
        let dtype = kernel.graph.ty(p.value).dtype;
        if p.role == Role::Output {
            buffers
                .push(vec![0xFF; shape(p.value).iter().product::<usize>() * if dtype == DType::Bf16 { 2 } else { 4 }]);
        } else {
            let array = random_array(&mut r, dtype, &shape(p.value));
            buffers.push(array.to_storage());
            values.insert(p.value, array);
        }
    }
    interp::run(&kernel.graph, &dims, &mut values).unwrap();
    let desc = GemmDesc::of_kernel(kernel, "dsc_test_gemm", hint).unwrap();
    let target = target("sm_90a");
    let gpu = emit_gemm(&desc, &GemmPlan::new(&desc, &target), &target).unwrap();
    let got = emulate(&gpu, dims, &buffers);
    for (i, p) in kernel.params.iter().enumerate().filter(|(_, p)| p.role == Role::Output) {
        let want = values[&p.value].to_floats().unwrap();
        let (got, ulp) = match kernel.graph.ty(p.value).dtype {
            DType::Bf16 => (bf16_of(&got[i]), 1.0 / 128.0),
            _ => (f32_of(&got[i]), 1e-6),
        };
        let rms = (want.iter().map(|x| x * x).sum::<f32>() / want.len() as f32).sqrt();
        assert_close("y", &want, &got, ulp, desc.k_per_group() as f32 * rms * 2f32.powi(-22));
    }
}

#[test]
fn gemms_of_every_format() {
    for hint in [RowsHint::Few, RowsHint::Many] {
        check_gemm(&linear(&[64], FP8_ROWS, &[(FP8, 70, DType::Bf16), (DType::Bf16, 5, DType::F32)]), 3, hint);
        check_gemm(&linear(&[96], DType::Bf16, &[(FP4, 40, DType::Bf16)]), 2, hint);
        check_gemm(&linear(&[36], DType::F32, &[(DType::F32, 33, DType::F32)]), 9, hint);
    }
}

#[test]
fn gemms_of_awkward_sizes() {
    for hint in [RowsHint::Few, RowsHint::Many] {
        check_gemm(&linear(&[37], DType::F32, &[(FP4, 5, DType::F32)]), 1, hint);
        check_gemm(&linear(&[3, 33], DType::Bf16, &[(FP8, 7, DType::Bf16)]), 13, hint);
        check_gemm(&linear(&[2, 33], FP8_ROWS, &[(DType::F32, 3, DType::F32)]), 2, hint);
        check_gemm(&linear(&[3, 32], FP8_ROWS, &[(FP4, 3, DType::F32)]), 2, hint);
    }
}

#[test]
fn gemms_in_groups() {
    for hint in [RowsHint::Few, RowsHint::Many] {
        check_gemm(&group_linear(4, 128, 80, DType::Bf16, FP8, DType::F32), 5, hint);
        check_gemm(&group_linear(3, 99, 15, DType::F32, DType::F32, DType::Bf16), 2, hint);
    }
}

#[test]
fn a_gemm_row_does_not_depend_on_the_others_or_the_tile() {
    let kernel = linear(&[100], DType::F32, &[(DType::F32, 20, DType::F32)]);
    let mut r = Random(31);
    let (x, w) = (r.floats(5 * 100, 1.0), f32_bytes(&r.floats(20 * 100, 1.0)));
    let target = target("sm_90a");
    let run = |hint, x: &[f32]| {
        let rows = x.len() / 100;
        let desc = GemmDesc::of_kernel(&kernel, "dsc_test_gemm", hint).unwrap();
        let gpu = emit_gemm(&desc, &GemmPlan::new(&desc, &target), &target).unwrap();
        emulate(&gpu, env(rows as u64), &[f32_bytes(x), w.clone(), vec![0; rows * 80]]).remove(2)
    };
    let all = run(RowsHint::Many, &x);
    assert_eq!(all, run(RowsHint::Few, &x));
    assert_eq!(all[2 * 80..3 * 80], run(RowsHint::Few, &x[200..300]));
}

#[test]
fn a_missing_barrier_would_be_noticed() {
    let mut r = Random(37);
    let inputs = [f32_bytes(&r.floats(300, 1.0)), vec![0xFF; 6 * 4]];
    let func = programs::top_k(300, 6);
    let target = target("sm_90a");
    let plan = RowPlan::new(&func, Expr::tokens(), &target).unwrap();
    let mut kernel = emit_row(&func, &target, &plan).unwrap();
    kernel.ptx = kernel.ptx.lines().filter(|l| !l.contains("bar.sync")).collect::<Vec<_>>().join("\n");
    let [up, down] = emulate_both(&kernel, env(1), &inputs);
    assert!(up != down);
}
