//! Barriers.

use super::super::builder::KernelBuilder;

impl KernelBuilder<'_> {
    /// `bar.sync 0`: waits for all threads of the block and orders their memory accesses.
    /// PTX ISA 9.0, 9.7.13 "Parallel Synchronization and Communication Instructions: bar".
    pub(in crate::nvptx) fn barrier(&self) {
        let _ = self.intrinsic("llvm.nvvm.barrier.cta.sync.aligned.all", &[], &[self.i32(0).into()]);
    }
}
