//! Special registers.

use super::super::builder::KernelBuilder;
use inkwell::values::IntValue;

impl<'c> KernelBuilder<'c> {
    /// `%tid.x`: number of the thread in its block. PTX ISA 9.0, 10 "Special Registers: %tid".
    pub(in crate::nvptx) fn thread(&self) -> IntValue<'c> {
        self.special("llvm.nvvm.read.ptx.sreg.tid.x")
    }

    /// `%ctaid.x`: number of the block along x. PTX ISA 9.0, 10 "Special Registers: %ctaid".
    pub(in crate::nvptx) fn block_x(&self) -> IntValue<'c> {
        self.special("llvm.nvvm.read.ptx.sreg.ctaid.x")
    }

    /// `%ctaid.y`: number of the block along y. PTX ISA 9.0, 10.
    pub(in crate::nvptx) fn block_y(&self) -> IntValue<'c> {
        self.special("llvm.nvvm.read.ptx.sreg.ctaid.y")
    }

    fn special(&self, name: &str) -> IntValue<'c> {
        self.int_result(self.intrinsic(name, &[], &[]), self.i32_ty())
    }
}
