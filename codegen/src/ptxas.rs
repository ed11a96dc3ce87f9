//! Runs NVIDIA's assembler on PTX, and reads what it says about registers, spills and shared memory.
//!
//! `ptxas` needs no GPU and no driver. It is looked for in `$DSC_PTXAS` (the program itself), `$CUDA_HOME/bin`, the
//! folder that `dsc toolchain install` fills (`$DSC_CUDA_DIR`, or `~/.cache/dsc/cuda`), and `$PATH`.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};

/// Machine code of a module with one kernel, and what the assembler reports about it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Assembled {
    /// The ELF image for exactly this architecture.
    pub cubin: Vec<u8>,
    /// Registers of a thread.
    pub registers: u32,
    /// Bytes stored and loaded for want of registers.
    pub spill_bytes: u64,
    /// Static shared memory.
    pub smem_bytes: u64,
    /// Bytes of a thread's stack.
    pub stack_bytes: u64,
    /// Warnings and advice, one a line.
    pub remarks: Vec<String>,
}

/// Why there is no machine code.
#[derive(Debug, thiserror::Error)]
pub enum PtxasError {
    /// There is no assembler.
    #[error(
        "no `ptxas` found in $DSC_PTXAS, $CUDA_HOME/bin, {} or $PATH; \
         install the Python package `nvidia-cuda-nvcc` (13.0.88) into that folder, or set DSC_PTXAS", .cache.display()
    )]
    Missing {
        /// The folder it would be installed to.
        cache: PathBuf,
    },
    /// It could not be run, or its files could not be read or written.
    #[error("`{}` could not be run: {source}", .program.display())]
    Io {
        /// The program.
        program: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// It refused the PTX.
    #[error("ptxas refused the code for {arch}:\n{message}")]
    Refused {
        /// Architecture.
        arch: String,
        /// What it printed.
        message: String,
    },
}

/// The assembler to use.
///
/// # Errors
/// [`PtxasError::Missing`].
pub fn find() -> Result<PathBuf, PtxasError> {
    let cache = cache_dir(env::var_os("DSC_CUDA_DIR"), env::var_os("HOME"));
    let candidates = candidates(env::var_os("DSC_PTXAS"), env::var_os("CUDA_HOME"), &cache, env::var_os("PATH"));
    candidates.into_iter().find(|p| p.is_file()).ok_or(PtxasError::Missing { cache })
}

/// The folder of the installed toolchain.
fn cache_dir(cuda_dir: Option<OsString>, home: Option<OsString>) -> PathBuf {
    match cuda_dir {
        Some(dir) => PathBuf::from(dir),
        None => Path::new(&home.unwrap_or_default()).join(".cache/dsc/cuda"),
    }
}

fn candidates(
    given: Option<OsString>,
    cuda_home: Option<OsString>,
    cache: &Path,
    path: Option<OsString>,
) -> Vec<PathBuf> {
    let mut out: Vec<PathBuf> = given.map(PathBuf::from).into_iter().collect();
    out.extend(cuda_home.map(|home| Path::new(&home).join("bin/ptxas")));
    out.push(cache.join("nvidia/cu13/bin/ptxas"));
    out.extend(path.iter().flat_map(env::split_paths).map(|dir| dir.join("ptxas")));
    out
}

/// Files of one run, removed when it ends.
struct Workplace(PathBuf);

impl Workplace {
    fn new() -> io::Result<Workplace> {
        static COUNTER: AtomicU64 = AtomicU64::new(0);
        let n = COUNTER.fetch_add(1, Ordering::Relaxed);
        let dir = env::temp_dir().join(format!("dsc-ptxas-{}-{n}", std::process::id()));
        fs::create_dir_all(&dir)?;
        Ok(Workplace(dir))
    }
}

impl Drop for Workplace {
    fn drop(&mut self) {
        // A folder that stays behind is no failure of the compilation.
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Assembles a module with one kernel for `arch`, such as `sm_90a`.
///
/// # Errors
/// No assembler, or it does not take the code.
pub fn assemble(ptx: &str, arch: &str) -> Result<Assembled, PtxasError> {
    assemble_with(&find()?, ptx, arch)
}

/// [`assemble`] with this program.
///
/// # Errors
/// As there.
pub fn assemble_with(program: &Path, ptx: &str, arch: &str) -> Result<Assembled, PtxasError> {
    let failed = |source| PtxasError::Io { program: program.into(), source };
    let place = Workplace::new().map_err(failed)?;
    let (source, image) = (place.0.join("kernel.ptx"), place.0.join("kernel.cubin"));
    fs::write(&source, ptx).map_err(failed)?;
    // `--fmad false`: rounding is the kernel's business, not the assembler's.
    let output = Command::new(program)
        .args(["--verbose", "--fmad", "false", "--gpu-name", arch, "--output-file"])
        .arg(&image)
        .arg(&source)
        .output()
        .map_err(failed)?;
    let said = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    let said = said.replace(&*source.to_string_lossy(), "kernel.ptx");
    if !output.status.success() {
        return Err(PtxasError::Refused { arch: arch.into(), message: said.trim_end().into() });
    }
    let cubin = fs::read(&image).map_err(failed)?;
    Ok(report(&said, cubin))
}

/// Reads the assembler's report.
fn report(said: &str, cubin: Vec<u8>) -> Assembled {
    let spills = number_before(said, "bytes spill stores") + number_before(said, "bytes spill loads");
    Assembled {
        cubin,
        registers: number_before(said, "registers") as u32,
        spill_bytes: spills,
        smem_bytes: number_before(said, "bytes smem"),
        stack_bytes: number_before(said, "bytes stack frame"),
        remarks: said.lines().filter(|l| !is_routine(l)).map(|l| l.trim().to_owned()).collect(),
    }
}

/// Sum of the numbers that stand before `words`.
fn number_before(text: &str, words: &str) -> u64 {
    let number = |(at, _): (usize, &str)| {
        let head = text.get(..at)?.trim_end();
        let start = head.rfind(|c: char| !c.is_ascii_digit()).map_or(0, |i| i + 1);
        head.get(start..)?.parse::<u64>().ok()
    };
    text.match_indices(words).filter_map(number).sum()
}

/// Lines that every run prints.
fn is_routine(line: &str) -> bool {
    let line = line.trim();
    let prefixes = ["ptxas info    : Compiling", "ptxas info    : Function properties", "ptxas info    : Used"];
    line.is_empty()
        || prefixes.iter().any(|p| line.starts_with(p))
        || line.starts_with("ptxas info    : 0 bytes gmem")
        || line.starts_with("ptxas info    : Compile time")
        || line.contains("bytes stack frame")
        || line.starts_with("ptxas info    : Function properties")
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAID: &str = "ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'k' for 'sm_90a'
ptxas info    : Function properties for k
    16 bytes stack frame, 228 bytes spill stores, 12 bytes spill loads
ptxas info    : Used 40 registers, used 1 barriers, 16 bytes cumulative stack size, 1024 bytes smem
ptxas info    : Compile time = 3.250 ms
ptxas warning : Value of threads per SM for entry k is out of range
";

    #[test]
    fn reads_reports() {
        let a = report(SAID, Vec::new());
        assert_eq!((a.registers, a.spill_bytes, a.smem_bytes, a.stack_bytes), (40, 240, 1024, 16));
        assert_eq!(a.remarks, ["ptxas warning : Value of threads per SM for entry k is out of range"]);
    }

    #[test]
    fn looks_in_the_documented_order() {
        let cache = cache_dir(None, Some("/home/me".into()));
        let found = candidates(Some("/a/ptxas".into()), Some("/cuda".into()), &cache, Some("/x:/y".into()));
        let want =
            ["/a/ptxas", "/cuda/bin/ptxas", "/home/me/.cache/dsc/cuda/nvidia/cu13/bin/ptxas", "/x/ptxas", "/y/ptxas"];
        assert_eq!(found, want.map(PathBuf::from));
        assert_eq!(cache_dir(Some("/c".into()), None), PathBuf::from("/c"));
    }

    #[test]
    fn a_program_that_cannot_run_is_an_error() {
        let error = assemble_with(Path::new("/nonexistent/ptxas"), "", "sm_90a").unwrap_err();
        assert!(error.to_string().starts_with("`/nonexistent/ptxas` could not be run"), "{error}");
    }
}
