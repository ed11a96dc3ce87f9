//! Memory that kernels work on: zeroed, and aligned for any vector instruction.

use bytemuck::{Pod, Zeroable};

/// Alignment of every [`Bytes`], in bytes.
pub const ALIGNMENT: usize = 64;

#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(C, align(64))]
struct Line([u8; ALIGNMENT]);

/// There is not enough memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("no memory for {bytes} bytes")]
pub struct OutOfMemory {
    /// Bytes asked for.
    pub bytes: u64,
}

/// A byte buffer at a 64-byte boundary.
#[derive(Debug, Clone)]
pub struct Bytes {
    lines: Vec<Line>,
    len: usize,
}

impl Bytes {
    /// Zeroed memory of `len` bytes.
    ///
    /// # Errors
    /// There is not that much.
    pub fn zeroed(len: u64) -> Result<Bytes, OutOfMemory> {
        let fail = OutOfMemory { bytes: len };
        let len = usize::try_from(len).map_err(|_| fail)?;
        let lines = bytemuck::try_zeroed_vec(len.div_ceil(ALIGNMENT)).map_err(|()| fail)?;
        Ok(Bytes { lines, len })
    }

    /// A copy of these bytes.
    ///
    /// # Errors
    /// There is no memory for them.
    pub fn copy_of(bytes: &[u8]) -> Result<Bytes, OutOfMemory> {
        let mut out = Bytes::zeroed(bytes.len() as u64)?;
        out.as_mut().copy_from_slice(bytes);
        Ok(out)
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Address of the first byte.
    pub fn as_mut_ptr(&mut self) -> *mut u8 {
        self.lines.as_mut_ptr().cast()
    }

    /// Address of the first byte, for memory that kernels only read.
    pub fn as_ptr(&self) -> *const u8 {
        self.lines.as_ptr().cast()
    }
}

impl AsRef<[u8]> for Bytes {
    fn as_ref(&self) -> &[u8] {
        let all: &[u8] = bytemuck::cast_slice(&self.lines);
        &all[..self.len]
    }
}

impl AsMut<[u8]> for Bytes {
    fn as_mut(&mut self) -> &mut [u8] {
        let all: &mut [u8] = bytemuck::cast_slice_mut(&mut self.lines);
        &mut all[..self.len]
    }
}
