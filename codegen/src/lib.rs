//! dsc-codegen: from kernels to code.
//!
//! Kernels become loop programs ([`lower`], [`loops`]), and those CLIF ([`cpu`]) or PTX (`nvptx`). [`bundle`] puts
//! the code of all kernels, the manifest and the hashes together, with [`cache`] in front; [`forms`] shows the same code
//! to people.

pub mod bundle;
pub mod cache;
pub mod cpu;
pub mod forms;
#[cfg(feature = "nvptx")]
pub mod gpu;
pub mod loops;
pub mod lower;
#[cfg(feature = "nvptx")]
pub mod nvptx;
pub mod ptxas;

/// Version of the LLVM that PTX comes from; absent in a build without it.
pub fn llvm_version() -> Option<String> {
    #[cfg(feature = "nvptx")]
    {
        let (major, minor, patch) = inkwell::support::get_llvm_version();
        Some(format!("{major}.{minor}.{patch}"))
    }
    #[cfg(not(feature = "nvptx"))]
    None
}
