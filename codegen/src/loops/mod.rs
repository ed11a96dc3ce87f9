//! Loop programs: the form between a kernel's ops and a backend's instructions.
//!
//! `lower` writes one [`Func`] per kernel from the ops' meanings; `cpu` turns it into CLIF, `nvptx` into LLVM IR.
//! A function computes a block of consecutive rows of its kernel (`row_begin .. row_begin + row_count`,
//! at most [`Func::row_block`]); the backend calls it, or wraps it, for every block.
//!
//! Parallelism is said, not guessed: [`Stmt::Lanes`] iterations are independent and [`Stmt::Reduce`] combines
//! per-iteration values. A CPU runs both as loops; a GPU spreads them over the threads of one block and puts a
//! barrier after each. Everything outside them is *uniform*: every thread computes the same scalars, and a
//! store outside `Lanes` is done by one thread, with a barrier after it.
//!
//! Values are in single assignment: `i64` ([`Ty::I`]), `f32` ([`Ty::F`]) or truth ([`Ty::B`]). Memory holds
//! [`Mem`] elements; integers are non-negative unless loaded from [`Mem::I32`]. All addresses are bytes
//! from the start of a [`Place`].

mod builder;
mod print;
mod prune;
mod verify;

pub use builder::Builder;
pub use verify::{LoopError, verify};

use dsc_ir::expr::Sym;

/// A value of the program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Var(pub u32);

/// Type of a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Ty {
    /// 64-bit integer.
    I,
    /// 32-bit float.
    F,
    /// Truth.
    B,
}

/// Element type of an access; loads widen, stores round or truncate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Mem {
    /// `f32`.
    F32,
    /// bfloat16; a store rounds to nearest even, a load widens exactly.
    Bf16,
    /// Signed 32-bit integer, sign-extended.
    I32,
    /// Byte, zero-extended.
    U8,
}

impl Mem {
    /// Bytes of an element.
    pub fn bytes(self) -> u64 {
        match self {
            Mem::F32 | Mem::I32 => 4,
            Mem::Bf16 => 2,
            Mem::U8 => 1,
        }
    }

    /// Type of the value it loads as.
    pub fn ty(self) -> Ty {
        match self {
            Mem::F32 | Mem::Bf16 => Ty::F,
            Mem::I32 | Mem::U8 => Ty::I,
        }
    }
}

/// Memory an access refers to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Place {
    /// Parameter `i` of the kernel.
    Param(u32),
    /// Scratch area `i`, private to the block of rows; contents undefined at the start.
    Scratch(u32),
}

/// Integer operations (wrapping).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(missing_docs)] // the names say it; Div and Rem are of unsigned values, Shr is logical, Min and Max signed
pub enum IOp {
    Add,
    Sub,
    Mul,
    Div,
    Rem,
    And,
    Or,
    Xor,
    Shl,
    Shr,
    Min,
    Max,
}

/// Float operations (IEEE single, no contraction).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(missing_docs)] // the names say it; Min and Max of non-NaN values
pub enum FOp {
    Add,
    Sub,
    Mul,
    Div,
    Min,
    Max,
}

/// Functions of one float.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FUn {
    /// Sign flipped.
    Neg,
    /// Absolute value.
    Abs,
    /// Correctly rounded root.
    Sqrt,
    /// `e^x`, within 2 ulp.
    Exp,
    /// `ln(1 + x)`, within 2 ulp.
    Log1p,
    /// Sine of an f32 angle of any size, within 2 ulp of the largest value.
    Sin,
    /// Cosine, likewise.
    Cos,
    /// To the nearest integer, ties to even.
    Rint,
}

/// Comparisons; of integers signed, of floats ordered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum Cmp {
    Eq,
    Ne,
    Lt,
    Le,
    Gt,
    Ge,
}

/// How one value is computed.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Inst {
    /// An integer.
    ConstI(i64),
    /// A float.
    ConstF(f32),
    /// A launch-time dimension.
    Dim(Sym),
    /// First row of the block.
    RowBegin,
    /// Rows in the block.
    RowCount,
    /// Integer operation.
    I(IOp, Var, Var),
    /// Float operation.
    F(FOp, Var, Var),
    /// `a * b + c`, rounded once.
    Fma(Var, Var, Var),
    /// Function of a float.
    U(FUn, Var),
    /// Comparison of two integers or two floats.
    Cmp(Cmp, Var, Var),
    /// Both true.
    And(Var, Var),
    /// Either true.
    Or(Var, Var),
    /// Not true.
    Not(Var),
    /// `if c { a } else { b }`, both evaluated.
    Select(Var, Var, Var),
    /// Integer to float, rounded.
    IToF(Var),
    /// Float to integer, towards zero; the value must fit 32 signed bits.
    FToI(Var),
    /// The 32 bits of a float, zero-extended.
    Bits(Var),
    /// The float of the low 32 bits.
    FromBits(Var),
    /// Load of one element at a byte address.
    Load {
        /// Memory.
        place: Place,
        /// Byte address in it.
        at: Var,
        /// Element.
        mem: Mem,
    },
}

/// How a reduction combines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Combine {
    /// Sum from +0: on a CPU in iteration order in f64, rounded once; on a GPU in f32 in a fixed order.
    Sum,
    /// Largest, from -inf.
    Max,
    /// Largest and the iteration that gave it, lowest iteration on ties, from (-inf, -1).
    ArgMax,
    /// Integer sum.
    SumI,
}

/// One value combined over the iterations of a reduction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Acc {
    /// How.
    pub combine: Combine,
    /// The iteration's contribution, defined in the body.
    pub value: Var,
    /// The result, defined after the loop.
    pub out: Var,
    /// The iteration of [`Combine::ArgMax`].
    pub out_index: Option<Var>,
}

/// A value carried through a sequential loop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Carry {
    /// Value on entry.
    pub init: Var,
    /// Value inside the body.
    pub phi: Var,
    /// Value at the end of the body, for the next iteration.
    pub next: Var,
    /// Value after the loop.
    pub out: Var,
}

/// Statements.
#[derive(Debug, Clone, PartialEq)]
pub enum Stmt {
    /// Defines a value.
    Let(Var, Inst),
    /// Stores one element at a byte address.
    Store {
        /// Memory.
        place: Place,
        /// Byte address in it.
        at: Var,
        /// Element.
        mem: Mem,
        /// What.
        value: Var,
    },
    /// Sequential loop over `lo .. hi`.
    For {
        /// Loop variable.
        var: Var,
        /// First value.
        lo: Var,
        /// Bound.
        hi: Var,
        /// Values carried round.
        carries: Vec<Carry>,
        /// Body.
        body: Vec<Stmt>,
    },
    /// Independent iterations `0 .. n`.
    Lanes {
        /// Loop variable.
        var: Var,
        /// Iterations.
        n: Var,
        /// Body; holds no `Lanes`, `Reduce` or `Dense`.
        body: Vec<Stmt>,
    },
    /// Independent iterations `0 .. n` whose values are combined; the body holds no stores.
    Reduce {
        /// Loop variable.
        var: Var,
        /// Iterations.
        n: Var,
        /// Body; holds no `Lanes`, `Reduce`, `Dense` or `Store`.
        body: Vec<Stmt>,
        /// What is combined.
        accs: Vec<Acc>,
    },
    /// Runs the body where the condition (uniform outside `Lanes`) holds.
    If {
        /// Condition.
        cond: Var,
        /// Body.
        body: Vec<Stmt>,
    },
    /// `y[i, j] = sum_k x[i, k] * w[j, k]` over f32 panels: `m` rows of `x` and `y`, `n` rows of `w`, `k` columns.
    /// The sum over `k` has a fixed order that does not depend on `m` or `n`. CPU only; it becomes a call of
    /// the runtime's one dense micro-kernel.
    Dense {
        /// Result and its byte address.
        y: (Place, Var),
        /// Bytes between rows of `y`.
        y_stride: Var,
        /// Left operand and its byte address.
        x: (Place, Var),
        /// Bytes between rows of `x`.
        x_stride: Var,
        /// Right operand, contiguous rows, and its byte address.
        w: (Place, Var),
        /// Rows of `x`.
        m: Var,
        /// Rows of `w`.
        n: Var,
        /// Columns.
        k: Var,
    },
}

/// A scratch area.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Scratch {
    /// For people.
    pub name: String,
    /// Size, a multiple of 16.
    pub bytes: u64,
}

/// A parameter, as the kernel lists them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Param {
    /// For people.
    pub name: String,
    /// Whether the function stores to it.
    pub written: bool,
}

/// A loop program.
#[derive(Debug, Clone, PartialEq)]
pub struct Func {
    /// Symbol.
    pub name: String,
    /// Parameters in order.
    pub params: Vec<Param>,
    /// Scratch areas.
    pub scratch: Vec<Scratch>,
    /// Most rows a call may be given.
    pub row_block: u64,
    /// Body.
    pub body: Vec<Stmt>,
    /// Types of the values.
    pub types: Vec<Ty>,
}

impl Func {
    /// Bytes of all scratch areas.
    pub fn scratch_bytes(&self) -> u64 {
        self.scratch.iter().map(|s| s.bytes).sum()
    }

    /// Type of a value.
    pub fn ty(&self, v: Var) -> Ty {
        self.types[v.0 as usize]
    }
}
