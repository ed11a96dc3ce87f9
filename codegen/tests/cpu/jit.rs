//! A small just-in-time harness for CLIF text.

use cranelift_codegen::ir::ExternalName;
use cranelift_codegen::settings::{self, Configurable};
use cranelift_jit::{JITBuilder, JITModule};
use cranelift_module::{Linkage, Module};
use dsc_codegen::loops::Func;
use dsc_ir::cpu_abi;
use dsc_ir::expr::Env;

type Entry = unsafe extern "C" fn(*const *mut u8, *const i64, i64, i64, *mut u8);

/// Memory aligned as kernels are promised.
#[repr(C, align(64))]
#[derive(Clone, Copy)]
struct Chunk([u8; 64]);

#[derive(Clone)]
pub struct Buffer {
    chunks: Vec<Chunk>,
    len: usize,
}

impl Buffer {
    pub fn filled(len: usize, byte: u8) -> Buffer {
        Buffer { chunks: vec![Chunk([byte; 64]); len.div_ceil(64) + 1], len }
    }

    pub fn of(bytes: &[u8]) -> Buffer {
        let mut b = Buffer::filled(bytes.len(), 0);
        for (c, part) in b.chunks.iter_mut().zip(bytes.chunks(64)) {
            c.0[..part.len()].copy_from_slice(part);
        }
        b
    }

    pub fn bytes(&self) -> Vec<u8> {
        self.chunks.iter().flat_map(|c| c.0).take(self.len).collect()
    }

    fn ptr(&mut self) -> *mut u8 {
        self.chunks.as_mut_ptr().cast()
    }
}

pub struct Compiled {
    entry: Entry,
    scratch: usize,
    _module: JITModule,
}

extern "C" fn exp(x: f32) -> f32 {
    f64::from(x).exp() as f32
}
extern "C" fn log1p(x: f32) -> f32 {
    f64::from(x).ln_1p() as f32
}
extern "C" fn sin(x: f32) -> f32 {
    f64::from(x).sin() as f32
}
extern "C" fn cos(x: f32) -> f32 {
    f64::from(x).cos() as f32
}
extern "C" fn fma(a: f32, b: f32, c: f32) -> f32 {
    a.mul_add(b, c)
}

/// The micro-kernel in its documented order of summation.
#[allow(clippy::too_many_arguments)] // the agreed signature
extern "C" fn dense(y: i64, y_stride: i64, x: i64, x_stride: i64, w: i64, m: i64, n: i64, k: i64) {
    for i in 0..m {
        for j in 0..n {
            let mut sums = [0.0f32; 16];
            for c in 0..k {
                let (xp, wp) = ((x + i * x_stride + 4 * c) as *const f32, (w + 4 * (j * k + c)) as *const f32);
                // Safety: the kernel passes panels of these sizes.
                sums[c as usize % 16] += unsafe { *xp * *wp };
            }
            let mut width = 8;
            while width > 0 {
                for s in 0..width {
                    sums[s] += sums[s + width];
                }
                width /= 2;
            }
            // Safety: as above.
            unsafe { *((y + i * y_stride + 4 * j) as *mut f32) = sums[0] };
        }
    }
}

pub fn compile(func: &Func) -> Compiled {
    let text = dsc_codegen::cpu::emit(func).unwrap_or_else(|e| panic!("{e}\n{func}"));
    assert_eq!(text, dsc_codegen::cpu::emit(func).unwrap(), "the text is not deterministic");
    let mut flags = settings::builder();
    flags.set("opt_level", "speed").unwrap();
    let isa = cranelift_native::builder().unwrap().finish(settings::Flags::new(flags)).unwrap();
    let mut builder = JITBuilder::with_isa(isa, cranelift_module::default_libcall_names());
    let symbols: [*const u8; 6] = [
        exp as *const u8,
        log1p as *const u8,
        sin as *const u8,
        cos as *const u8,
        fma as *const u8,
        dense as *const u8,
    ];
    for (lent, symbol) in cpu_abi::ALL.iter().zip(symbols) {
        builder.symbol(lent.name, symbol);
    }
    let mut module = JITModule::new(builder);
    let mut parsed = cranelift_reader::parse_functions(&text).unwrap_or_else(|e| panic!("{e}\n{text}"));
    let mut context = module.make_context();
    context.func = parsed.remove(0);
    let host = module.isa().default_call_conv();
    context.func.signature.call_conv = host;
    for (_, signature) in context.func.dfg.signatures.iter_mut() {
        signature.call_conv = host;
    }
    let names: Vec<_> = context.func.dfg.ext_funcs.iter().map(|(f, d)| (f, d.name.clone(), d.signature)).collect();
    for (f, name, signature) in names {
        let ExternalName::TestCase(name) = name else { panic!("an external name of another kind") };
        let name = String::from_utf8(name.raw().to_vec()).unwrap();
        let id = module.declare_function(&name, Linkage::Import, &context.func.dfg.signatures[signature]).unwrap();
        let user = context.func.declare_imported_user_function(cranelift_codegen::ir::UserExternalName {
            namespace: 0,
            index: id.as_u32(),
        });
        context.func.dfg.ext_funcs[f].name = ExternalName::user(user);
    }
    let id = module.declare_function(&func.name, Linkage::Export, &context.func.signature).unwrap();
    module.define_function(id, &mut context).unwrap_or_else(|e| panic!("{e}\n{text}"));
    module.finalize_definitions().unwrap();
    // Safety: the function was compiled with this signature.
    let entry = unsafe { std::mem::transmute::<*const u8, Entry>(module.get_finalized_function(id)) };
    Compiled { entry, scratch: func.scratch_bytes() as usize, _module: module }
}

impl Compiled {
    /// Runs rows `begin .. end` with scratch full of NaN.
    pub fn run(&self, params: &mut [Buffer], env: &Env, begin: u64, end: u64) {
        let pointers: Vec<*mut u8> = params.iter_mut().map(Buffer::ptr).collect();
        let dims = env.dims().map(|d| d as i64);
        let mut scratch = Buffer::filled(self.scratch, 0xFF);
        // Safety: parameters have the sizes of the kernel's types.
        unsafe { (self.entry)(pointers.as_ptr(), dims.as_ptr(), begin as i64, end as i64, scratch.ptr()) };
    }
}
