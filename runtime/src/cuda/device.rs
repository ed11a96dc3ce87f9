//! A GPU: modules, buffers, launches, graphs and times, on one stream.

use super::buffer::{Buffer, HostMemory};
use cudarc::driver::sys::{CUevent_flags, CUfunction_attribute_enum, CUstreamCaptureMode};
use cudarc::driver::{CudaContext, CudaFunction, CudaGraph, CudaStream, DriverError, result, sys};
use cudarc::nvrtc::Ptx;
use dsc_ir::expr::Env;
use std::ffi::c_void;
use std::sync::Arc;

/// Shared memory that a launch may ask for without saying so beforehand.
/// Source: CUDA C++ Programming Guide, "Technical Specifications per Compute Capability".
const UNANNOUNCED_SMEM: u32 = 48 * 1024;

/// Why a GPU could not do something.
#[derive(Debug, thiserror::Error)]
pub enum CudaError {
    /// There is no driver.
    #[error("no NVIDIA driver found (libcuda.so.1 could not be loaded)")]
    NoDriver,
    /// There is no such device.
    #[error("there is no GPU {ordinal}: the driver knows {count}")]
    NoDevice {
        /// Asked for.
        ordinal: usize,
        /// Devices there are.
        count: usize,
    },
    /// The driver failed at something other than a kernel.
    #[error("the NVIDIA driver failed to {doing}: {message}")]
    Driver {
        /// What was to be done.
        doing: String,
        /// What the driver said.
        message: String,
    },
    /// Code that the driver does not take.
    #[error("kernel `{kernel}` cannot be loaded: {message}")]
    Load {
        /// Symbol.
        kernel: String,
        /// What the driver said.
        message: String,
    },
    /// A launch failed, or a kernel while it ran.
    #[error("kernel `{kernel}` failed: {message}")]
    Kernel {
        /// Symbol.
        kernel: String,
        /// What the driver said.
        message: String,
    },
}

pub(super) fn words(e: DriverError) -> String {
    match (e.error_name(), e.error_string()) {
        (Ok(name), Ok(text)) => format!("{} ({})", text.to_string_lossy(), name.to_string_lossy()),
        _ => format!("error {}", e.0 as u32),
    }
}

pub(super) fn driver(doing: &'static str) -> impl Fn(DriverError) -> CudaError {
    move |e| CudaError::Driver { doing: doing.into(), message: words(e) }
}

/// A GPU with one stream of work.
pub struct Device {
    context: Arc<CudaContext>,
    stream: Arc<CudaStream>,
}

/// A loaded kernel.
pub struct Kernel {
    function: CudaFunction,
    symbol: String,
}

/// Launches that were recorded once and are started together. The memory they work on must outlive it.
pub struct LaunchGraph(CudaGraph);

// SAFETY: the driver asks that calls on one graph do not overlap; a `LaunchGraph` is used through its device's owner,
// one call at a time, on whichever thread that is.
#[allow(unsafe_code)]
unsafe impl Send for LaunchGraph {}

/// Blocks, threads and shared memory of a launch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LaunchShape {
    /// Blocks.
    pub grid: [u32; 3],
    /// Threads of a block.
    pub threads: u32,
    /// Dynamic shared memory.
    pub smem_bytes: u32,
}

impl Device {
    /// Opens device number `ordinal`.
    ///
    /// # Errors
    /// No driver, no such device, or one that does not start.
    pub fn open(ordinal: usize) -> Result<Device, CudaError> {
        if !is_driver_present() {
            return Err(CudaError::NoDriver);
        }
        let count = CudaContext::device_count().map_err(driver("count devices"))?;
        let count = usize::try_from(count).unwrap_or(0);
        if ordinal >= count {
            return Err(CudaError::NoDevice { ordinal, count });
        }
        let context = CudaContext::new(ordinal).map_err(driver("open the device"))?;
        // SAFETY: event tracking orders accesses of several streams; this device has one stream, which orders all.
        #[allow(unsafe_code)]
        unsafe {
            context.disable_event_tracking();
        }
        // The legacy default stream cannot be captured into a graph.
        let stream = context.new_stream().map_err(driver("make a stream"))?;
        Ok(Device { context, stream })
    }

    /// Name of the device.
    ///
    /// # Errors
    /// The driver's.
    pub fn name(&self) -> Result<String, CudaError> {
        self.context.name().map_err(driver("name the device"))
    }

    /// Compute capability.
    ///
    /// # Errors
    /// The driver's.
    pub fn capability(&self) -> Result<(i32, i32), CudaError> {
        self.context.compute_capability().map_err(driver("read the compute capability"))
    }

    /// Free and total memory in bytes.
    ///
    /// # Errors
    /// The driver's.
    pub fn memory(&self) -> Result<(usize, usize), CudaError> {
        self.context.mem_get_info().map_err(driver("read the memory's size"))
    }

    /// Memory of `bytes`, zeroed.
    ///
    /// # Errors
    /// Too little memory.
    pub fn zeros(&self, bytes: usize) -> Result<Buffer, CudaError> {
        // The driver gives no memory of no bytes, and a kernel must get some pointer.
        let slice = self.stream.alloc_zeros(bytes.max(16)).map_err(driver("allocate memory"))?;
        Ok(Buffer::on_device(slice, bytes))
    }

    /// Page-locked memory of the host that kernels reach over the bus. Its contents are undefined.
    ///
    /// # Errors
    /// Too little memory, or too much of it locked.
    pub fn host(&self, bytes: usize) -> Result<Buffer, CudaError> {
        Ok(Buffer::on_host(HostMemory::new(&self.context, bytes.max(16))?, bytes))
    }

    /// Memory that holds `contents`.
    ///
    /// # Errors
    /// Too little memory.
    pub fn upload(&self, contents: &[u8]) -> Result<Buffer, CudaError> {
        let mut buffer = self.zeros(contents.len())?;
        self.write(&mut buffer, contents)?;
        Ok(buffer)
    }

    /// Overwrites the first bytes of a buffer, after all work before it.
    ///
    /// # Errors
    /// More contents than room, or the driver's.
    pub fn write(&self, buffer: &mut Buffer, contents: &[u8]) -> Result<(), CudaError> {
        buffer.write(&self.stream, contents)
    }

    /// Contents of a buffer, after all work before it.
    ///
    /// # Errors
    /// The driver's, those of kernels that ran before included.
    pub fn read(&self, buffer: &Buffer) -> Result<Vec<u8>, CudaError> {
        self.read_first(buffer, buffer.len())
    }

    /// The first bytes of a buffer, after all work before it.
    ///
    /// # Errors
    /// Fewer bytes there, or as [`Device::read`].
    pub fn read_first(&self, buffer: &Buffer, bytes: usize) -> Result<Vec<u8>, CudaError> {
        buffer.read(&self.stream, bytes)
    }

    /// Loads one kernel of a module, which is PTX text or machine code for this device.
    ///
    /// # Errors
    /// Code that the driver refuses, or no such kernel in it.
    pub fn load(&self, code: &[u8], symbol: &str) -> Result<Kernel, CudaError> {
        let fail = |message: String| CudaError::Load { kernel: symbol.into(), message };
        if symbol.contains('\0') {
            return Err(fail("its name holds a NUL".into()));
        }
        // PTX is read up to a NUL; machine code knows its own size.
        let mut image = code.to_vec();
        image.push(0);
        let module = self.context.load_module(Ptx::from_binary(image)).map_err(|e| fail(words(e)))?;
        let function = module.load_function(symbol).map_err(|e| fail(words(e)))?;
        Ok(Kernel { function, symbol: symbol.into() })
    }

    /// Where kernels find a buffer.
    pub(super) fn address(&self, buffer: &Buffer) -> u64 {
        buffer.address(&self.stream)
    }

    /// Starts a kernel on these buffers and dimensions. A grid without blocks starts nothing.
    ///
    /// Results are seen, and failures of the kernel itself reported, by [`Device::finish`].
    ///
    /// # Errors
    /// A launch that the driver refuses.
    pub fn launch(
        &self,
        kernel: &Kernel,
        shape: LaunchShape,
        buffers: &[&Buffer],
        dims: &Env,
    ) -> Result<(), CudaError> {
        if shape.grid.contains(&0) {
            return Ok(());
        }
        let fail = |e| CudaError::Kernel { kernel: kernel.symbol.clone(), message: words(e) };
        if shape.smem_bytes > UNANNOUNCED_SMEM {
            let attribute = CUfunction_attribute_enum::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
            kernel.function.set_attribute(attribute, shape.smem_bytes as i32).map_err(fail)?;
        }
        let words: Vec<u64> = buffers.iter().map(|b| b.address(&self.stream)).chain(dims.dims()).collect();
        self.start(kernel, shape, words)
    }

    /// Starts a kernel whose parameters are these words of eight bytes: addresses that lead to memory which outlives
    /// the launch, and numbers.
    ///
    /// # Errors
    /// A launch that the driver refuses.
    pub(super) fn start(&self, kernel: &Kernel, shape: LaunchShape, mut words: Vec<u64>) -> Result<(), CudaError> {
        let fail = |e| CudaError::Kernel { kernel: kernel.symbol.clone(), message: self::words(e) };
        let mut args: Vec<*mut c_void> = words.iter_mut().map(|w| std::ptr::from_mut(w).cast()).collect();
        let [x, y, z] = shape.grid;
        self.context.bind_to_thread().map_err(fail)?;
        // SAFETY: every argument points to eight bytes that live until the driver has copied them, in the number
        // and order that the kernel's calling convention says; that the kernel stays inside its buffers is what
        // code generation and its tests answer for.
        #[allow(unsafe_code)]
        let launched = unsafe {
            result::launch_kernel(
                kernel.function.cu_function(),
                (x, y, z),
                (shape.threads, 1, 1),
                shape.smem_bytes,
                self.stream.cu_stream(),
                &mut args,
            )
        };
        launched.map_err(fail)
    }

    /// Waits for all work; a failure is put down to `kernel`.
    ///
    /// # Errors
    /// A kernel failed while it ran.
    pub fn finish(&self, kernel: &Kernel) -> Result<(), CudaError> {
        let fail = |e| CudaError::Kernel { kernel: kernel.symbol.clone(), message: words(e) };
        self.stream.synchronize().map_err(fail)
    }

    /// Records what `work` starts into a graph instead of running it.
    ///
    /// # Errors
    /// The work's own, or work that cannot be recorded.
    pub fn capture(&self, work: impl FnOnce() -> Result<(), CudaError>) -> Result<LaunchGraph, CudaError> {
        let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        self.stream.begin_capture(mode).map_err(driver("start recording a graph"))?;
        let done = work();
        // The recording ends in any case: a stream that still records can do nothing else.
        let graph = self.stream.end_capture(sys::CUgraphInstantiate_flags_enum(0));
        done?;
        match graph.map_err(driver("record a graph"))? {
            Some(graph) => Ok(LaunchGraph(graph)),
            None => Err(CudaError::Driver { doing: "record a graph".into(), message: "it gave none".into() }),
        }
    }

    /// Starts all launches of a graph.
    ///
    /// # Errors
    /// The driver's.
    pub fn replay(&self, graph: &LaunchGraph) -> Result<(), CudaError> {
        graph.0.launch().map_err(driver("launch a graph"))
    }

    /// Waits for all work; a failure is put down to `doing`.
    ///
    /// # Errors
    /// Something failed while it ran.
    pub fn wait(&self, doing: &str) -> Result<(), CudaError> {
        let fail = |e| CudaError::Driver { doing: doing.into(), message: words(e) };
        self.stream.synchronize().map_err(fail)
    }

    /// Mean time of a launch in microseconds, over `repeats` launches in a row after one that is not counted.
    ///
    /// # Errors
    /// As [`Device::launch`] and [`Device::finish`].
    pub fn time(
        &self,
        kernel: &Kernel,
        shape: LaunchShape,
        buffers: &[&Buffer],
        dims: &Env,
        repeats: u32,
    ) -> Result<f64, CudaError> {
        let event = || self.context.new_event(Some(CUevent_flags::CU_EVENT_DEFAULT)).map_err(driver("take the time"));
        let (start, end) = (event()?, event()?);
        self.launch(kernel, shape, buffers, dims)?;
        start.record(&self.stream).map_err(driver("take the time"))?;
        for _ in 0..repeats {
            self.launch(kernel, shape, buffers, dims)?;
        }
        end.record(&self.stream).map_err(driver("take the time"))?;
        self.finish(kernel)?;
        let ms = start.elapsed_ms(&end).map_err(driver("take the time"))?;
        Ok(f64::from(ms) * 1000.0 / f64::from(repeats.max(1)))
    }
}

/// Whether a driver can be loaded. Everything else in this module asks first: the bindings panic without one.
pub fn is_driver_present() -> bool {
    // SAFETY: it tries to load the driver's library by its well-known names, which runs that library's
    // initialisers, as any use of the driver would.
    #[allow(unsafe_code)]
    unsafe {
        sys::is_culib_present()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_without_a_driver_is_an_error() {
        if is_driver_present() {
            println!("SKIPPED: there is a driver here");
            return;
        }
        let error = Device::open(0).err().unwrap();
        assert_eq!(error.to_string(), "no NVIDIA driver found (libcuda.so.1 could not be loaded)");
    }
}
