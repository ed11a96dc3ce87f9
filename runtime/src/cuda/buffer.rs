//! Memory that kernels on a GPU work on: the GPU's own, or page-locked memory of the host.

use super::device::{CudaError, driver};
use cudarc::driver::{CudaContext, CudaSlice, CudaStream, DevicePtr, DriverError, result, sys};
use std::sync::Arc;

/// Memory at an address that kernels can use.
pub struct Buffer {
    memory: Memory,
    bytes: usize,
}

enum Memory {
    Device(CudaSlice<u8>),
    Host(HostMemory),
}

/// Page-locked memory of the host, mapped into the GPU's address space.
pub(super) struct HostMemory {
    context: Arc<CudaContext>,
    host: *mut u8,
    device: sys::CUdeviceptr,
    bytes: usize,
}

// SAFETY: the memory belongs to this value alone, and the driver takes calls from any thread.
#[allow(unsafe_code)]
unsafe impl Send for HostMemory {}

impl HostMemory {
    pub fn new(context: &Arc<CudaContext>, bytes: usize) -> Result<HostMemory, CudaError> {
        let fail = driver("allocate page-locked memory");
        context.bind_to_thread().map_err(&fail)?;
        // SAFETY: the memory is freed once, when the value is dropped; `device` is where the driver says it is mapped.
        #[allow(unsafe_code)]
        unsafe {
            let flags = sys::CU_MEMHOSTALLOC_DEVICEMAP | sys::CU_MEMHOSTALLOC_PORTABLE;
            let host = result::malloc_host(bytes, flags).map_err(&fail)?;
            let mut device: sys::CUdeviceptr = 0;
            let mapped = sys::cuMemHostGetDevicePointer_v2(&raw mut device, host, 0).result();
            let memory = HostMemory { context: context.clone(), host: host.cast(), device, bytes };
            mapped.map_err(fail)?;
            Ok(memory)
        }
    }

    /// The host's view. No kernel may be writing the memory.
    fn as_slice(&self) -> &[u8] {
        // SAFETY: `host` leads to `bytes` bytes that live as long as this value.
        #[allow(unsafe_code)]
        unsafe {
            std::slice::from_raw_parts(self.host, self.bytes)
        }
    }

    /// The host's view, to write. No kernel may be using the memory.
    fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: as above, and `&mut self` makes it the only view.
        #[allow(unsafe_code)]
        unsafe {
            std::slice::from_raw_parts_mut(self.host, self.bytes)
        }
    }
}

impl Drop for HostMemory {
    fn drop(&mut self) {
        let _ = self.context.bind_to_thread();
        // SAFETY: it came from `malloc_host`, and nothing else frees it.
        #[allow(unsafe_code)]
        let _ = unsafe { result::free_host(self.host.cast()) };
    }
}

fn misfit(doing: &str, bytes: usize, room: usize) -> CudaError {
    CudaError::Driver { doing: doing.into(), message: format!("{bytes} bytes do not fit {room}") }
}

impl Buffer {
    pub(super) fn on_device(slice: CudaSlice<u8>, bytes: usize) -> Buffer {
        Buffer { memory: Memory::Device(slice), bytes }
    }

    pub(super) fn on_host(memory: HostMemory, bytes: usize) -> Buffer {
        Buffer { memory: Memory::Host(memory), bytes }
    }

    /// Bytes it holds.
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// Whether it holds nothing.
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// Where kernels find it.
    pub(super) fn address(&self, stream: &CudaStream) -> u64 {
        match &self.memory {
            Memory::Device(slice) => slice.device_ptr(stream).0,
            Memory::Host(memory) => memory.device,
        }
    }

    /// Overwrites the first bytes, after all work of the stream.
    pub(super) fn write(&mut self, stream: &Arc<CudaStream>, contents: &[u8]) -> Result<(), CudaError> {
        let doing = "copy to the device";
        if contents.len() > self.bytes {
            return Err(misfit(doing, contents.len(), self.bytes));
        }
        let copied = match &mut self.memory {
            Memory::Device(slice) => match slice.try_slice_mut(..contents.len()) {
                Some(mut part) => stream.memcpy_htod(contents, &mut part),
                None => return Err(misfit(doing, contents.len(), self.bytes)),
            },
            Memory::Host(memory) => stream.synchronize().map(|()| {
                memory.as_mut_slice()[..contents.len()].copy_from_slice(contents);
            }),
        };
        copied.map_err(driver(doing))
    }

    /// The first bytes, after all work of the stream.
    pub(super) fn read(&self, stream: &Arc<CudaStream>, bytes: usize) -> Result<Vec<u8>, CudaError> {
        let doing = "copy from the device";
        if bytes > self.bytes {
            return Err(misfit(doing, bytes, self.bytes));
        }
        let read = || -> Result<Vec<u8>, DriverError> {
            match &self.memory {
                Memory::Device(slice) => {
                    let contents = stream.clone_dtoh(&slice.slice(..bytes))?;
                    stream.synchronize()?;
                    Ok(contents)
                }
                Memory::Host(memory) => {
                    stream.synchronize()?;
                    Ok(memory.as_slice()[..bytes].to_vec())
                }
            }
        };
        read().map_err(driver(doing))
    }
}
