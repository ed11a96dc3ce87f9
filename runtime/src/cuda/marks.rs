//! Names of what runs, for a profiler: NVTX ranges, which nest on each thread.
//!
//! A profiler names a library in `NVTX_INJECTION64_PATH` and hooks itself into tables of callbacks that the program
//! offers. Without one there are no ranges and this costs nothing.
//! Source of the protocol: NVTX 3.1, `nvtxDetail/nvtxTypes.h` (tables, numbers) and `nvtxDetail/nvtxInit.h` (search).
#![allow(unsafe_code)] // a C interface with callbacks

use std::ffi::{CString, c_char, c_int, c_uint, c_void};
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, Ordering};

/// `NVTX_ETID_CALLBACKS`.
const CALLBACKS: u32 = 1;
/// `NVTX_ETID_VERSIONINFO`.
const VERSION_INFO: u32 = 3;
/// Version of the interface that is offered.
const VERSION: u32 = 3;
/// Modules of callbacks, `NVTX_CB_MODULE_SIZE`; number 1 has the ranges.
const MODULES: usize = 7;
const CORE: usize = 1;
/// More callbacks than any module has.
const CALLBACKS_OF_MODULE: usize = 32;
/// `NVTX_CBID_CORE_RangePushA` and `NVTX_CBID_CORE_RangePop`.
const PUSH: usize = 9;
const POP: usize = 11;

type Push = unsafe extern "C" fn(*const c_char) -> c_int;
type Pop = unsafe extern "C" fn() -> c_int;
type GetTable = unsafe extern "C" fn(u32) -> *const c_void;
type Initialize = unsafe extern "C" fn(GetTable) -> c_int;

/// Callbacks by module: a tool writes its own into them.
static SLOTS: [[AtomicPtr<c_void>; CALLBACKS_OF_MODULE]; MODULES] =
    [const { [const { AtomicPtr::new(ptr::null_mut()) }; CALLBACKS_OF_MODULE] }; MODULES];

/// Addresses of a module's callbacks.
struct Table([*mut *mut c_void; CALLBACKS_OF_MODULE]);
// SAFETY: the addresses are of atomics.
unsafe impl Send for Table {}
// SAFETY: as above.
unsafe impl Sync for Table {}

static TABLES: OnceLock<Vec<Table>> = OnceLock::new();

#[repr(C)]
struct Callbacks {
    struct_size: usize,
    get: unsafe extern "C" fn(c_uint, *mut *mut *mut *mut c_void, *mut c_uint) -> c_int,
}

#[repr(C)]
struct Version {
    struct_size: usize,
    version: u32,
    reserved: u32,
    set: unsafe extern "C" fn(u32),
}

static OFFERED_CALLBACKS: Callbacks = Callbacks { struct_size: size_of::<Callbacks>(), get: module_table };
static OFFERED_VERSION: Version =
    Version { struct_size: size_of::<Version>(), version: VERSION, reserved: 0, set: ignore_version };

unsafe extern "C" fn ignore_version(_: u32) {}

unsafe extern "C" fn offered(table: u32) -> *const c_void {
    match table {
        CALLBACKS => (&raw const OFFERED_CALLBACKS).cast(),
        VERSION_INFO => (&raw const OFFERED_VERSION).cast(),
        _ => ptr::null(),
    }
}

unsafe extern "C" fn module_table(module: c_uint, table: *mut *mut *mut *mut c_void, size: *mut c_uint) -> c_int {
    let tables =
        TABLES.get_or_init(|| SLOTS.iter().map(|slots| Table(std::array::from_fn(|i| slots[i].as_ptr()))).collect());
    let Some(found) = tables.get(module as usize).filter(|_| module > 0) else { return 0 };
    // SAFETY: the tool gives places for its results, or null; it changes what the addresses lead to, not the table.
    unsafe {
        if !table.is_null() {
            *table = found.0.as_ptr().cast_mut();
        }
        if !size.is_null() {
            *size = CALLBACKS_OF_MODULE as c_uint;
        }
    }
    1
}

/// A profiler's hooks, if there is a profiler.
pub(super) struct Marks(Option<(Push, Pop)>);

/// A range that ends when it is dropped.
pub(super) struct Range(Option<Pop>);

impl Drop for Range {
    fn drop(&mut self) {
        if let Some(pop) = self.0 {
            // SAFETY: a callback of the tool, for the range that was pushed on this thread.
            unsafe { pop() };
        }
    }
}

impl Marks {
    /// Looks for a profiler, once for the program.
    pub fn find() -> Marks {
        static FOUND: OnceLock<Option<(Push, Pop)>> = OnceLock::new();
        Marks(*FOUND.get_or_init(|| {
            let path = std::env::var_os("NVTX_INJECTION64_PATH")?;
            // SAFETY: the user names the library; loading it runs its initialisers, as the user wants.
            let library = unsafe { libloading::Library::new(path) }.ok()?;
            // SAFETY: the protocol gives this symbol this type.
            let initialize = *unsafe { library.get::<Initialize>(b"InitializeInjectionNvtx2\0") }.ok()?;
            // Its callbacks are called until the program ends.
            std::mem::forget(library);
            attach(initialize)
        }))
    }

    /// Starts a range of this name.
    pub fn range(&self, name: impl FnOnce() -> String) -> Range {
        let Some((push, pop)) = self.0 else { return Range(None) };
        let Ok(name) = CString::new(name()) else { return Range(None) };
        // SAFETY: a callback of the tool; the name lives until it returns.
        unsafe { push(name.as_ptr()) };
        Range(Some(pop))
    }
}

/// Lets a tool hook itself in, and takes its callbacks for ranges.
fn attach(initialize: Initialize) -> Option<(Push, Pop)> {
    // SAFETY: the protocol's entry point, given what the protocol asks for.
    if unsafe { initialize(offered) } == 0 {
        return None;
    }
    let [push, pop] = [PUSH, POP].map(|i| SLOTS[CORE][i].load(Ordering::Acquire));
    if push.is_null() || pop.is_null() {
        return None;
    }
    // SAFETY: the protocol gives callbacks of these numbers these types.
    Some(unsafe { (std::mem::transmute::<*mut c_void, Push>(push), std::mem::transmute::<*mut c_void, Pop>(pop)) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::CStr;
    use std::sync::Mutex;

    static HEARD: Mutex<Vec<String>> = Mutex::new(Vec::new());

    unsafe extern "C" fn push(name: *const c_char) -> c_int {
        // SAFETY: the ranges below give a string.
        let name = unsafe { CStr::from_ptr(name) };
        HEARD.lock().unwrap().push(format!("+{}", name.to_str().unwrap()));
        0
    }

    unsafe extern "C" fn pop() -> c_int {
        HEARD.lock().unwrap().push("-".into());
        0
    }

    /// What a profiler does when it is loaded.
    unsafe extern "C" fn tool(get: GetTable) -> c_int {
        // SAFETY: the protocol, from the tool's side.
        unsafe {
            let callbacks = &*get(CALLBACKS).cast::<Callbacks>();
            assert_eq!(callbacks.struct_size, 16);
            let (mut table, mut size) = (ptr::null_mut(), 0);
            assert_eq!((callbacks.get)(99, &raw mut table, &raw mut size), 0);
            assert_eq!((callbacks.get)(CORE as c_uint, &raw mut table, &raw mut size), 1);
            assert!(size as usize > POP);
            **table.add(PUSH) = push as *mut c_void;
            **table.add(POP) = pop as *mut c_void;
        }
        1
    }

    #[test]
    fn ranges_reach_a_tool_and_nest() {
        let marks = Marks(attach(tool));
        {
            let _outer = marks.range(|| "decode".into());
            let _inner = marks.range(|| "layer 3".into());
        }
        assert_eq!(*HEARD.lock().unwrap(), ["+decode", "+layer 3", "-", "-"]);
    }

    #[test]
    fn without_a_tool_no_name_is_made() {
        let _range = Marks(None).range(|| unreachable!());
    }
}
