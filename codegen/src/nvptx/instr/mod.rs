//! PTX instructions, one function each, with their section of the PTX ISA.

mod barrier;
mod cvt;
mod float;
mod shfl;
mod sreg;
