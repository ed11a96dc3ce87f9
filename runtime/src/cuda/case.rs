//! Conformance cases: one launch each, as a folder with `case.json`, the code, and a file for every input and
//! expected result. A folder of such folders travels to a machine that has a GPU and nothing else.

use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Name of the description in a case's folder.
pub const CASE_FILE: &str = "case.json";

/// One launch.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Case {
    /// For people; unique in a folder of cases.
    pub name: String,
    /// File with PTX, or with machine code of exactly the device's architecture.
    pub code: String,
    /// Entry point.
    pub symbol: String,
    /// Blocks: x, y, z.
    pub grid: [u32; 3],
    /// Threads of a block.
    pub threads: u32,
    /// Shared memory to ask for.
    pub smem_dynamic_bytes: u32,
    /// One pointer each, in order.
    pub params: Vec<CaseParam>,
    /// `n_tokens`, `n_seqs`, `n_context`, `n_out_rows`, passed after the pointers.
    pub dims: [u64; 4],
    /// Where the expected results come from, for people.
    #[serde(default)]
    pub note: String,
}

/// One parameter.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CaseParam {
    /// For people.
    pub name: String,
    /// Size in bytes.
    pub bytes: u64,
    /// File with its contents before the launch; all bytes are 0xFF (NaN) without one.
    pub input: Option<String>,
    /// What it must hold afterwards; without it, its input unchanged.
    pub expected: Option<Expected>,
}

/// Expected contents.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Expected {
    /// File.
    pub file: String,
    /// What it holds.
    pub element: Element,
    /// How near the device must come.
    pub rule: Rule,
}

/// Element of a result.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Element {
    /// 32-bit float.
    F32,
    /// bfloat16.
    Bf16,
    /// Signed 32-bit integer.
    I32,
    /// Byte.
    U8,
}

impl Element {
    /// Bytes of one.
    pub fn bytes(self) -> usize {
        match self {
            Element::F32 | Element::I32 => 4,
            Element::Bf16 => 2,
            Element::U8 => 1,
        }
    }
}

/// How near is near enough.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Rule {
    /// Bit for bit.
    Exact,
    /// Each element within `abs + rel |expected|`, but for a share of `outside` of them: values that a rounding or
    /// a choice inside the kernel may throw to the next code.
    Close {
        /// Absolute part.
        abs: f64,
        /// Relative part.
        rel: f64,
        /// Share of elements that may lie outside.
        outside: f64,
    },
}

/// A case that cannot be written or read.
#[derive(Debug, thiserror::Error)]
#[error("conformance case `{}`: {reason}", .path.display())]
pub struct CaseError {
    /// Folder or file.
    pub path: PathBuf,
    /// Why.
    pub reason: String,
}

fn io_error(path: &Path) -> impl Fn(io::Error) -> CaseError + '_ {
    move |e| CaseError { path: path.into(), reason: e.to_string() }
}

/// A parameter of a case to be written.
#[derive(Debug, Clone, PartialEq)]
pub struct ParamData {
    /// For people.
    pub name: String,
    /// Size in bytes.
    pub bytes: u64,
    /// Contents before the launch.
    pub input: Option<Vec<u8>>,
    /// Contents afterwards.
    pub expected: Option<(Vec<u8>, Element, Rule)>,
}

/// The launch of a case to be written.
#[derive(Debug, Clone, PartialEq)]
pub struct LaunchData<'a> {
    /// Name of the case, a word fit for a folder.
    pub name: &'a str,
    /// PTX text or machine code.
    pub code: &'a [u8],
    /// Entry point.
    pub symbol: &'a str,
    /// Blocks.
    pub grid: [u32; 3],
    /// Threads of a block.
    pub threads: u32,
    /// Shared memory to ask for.
    pub smem_dynamic_bytes: u32,
    /// Dimensions.
    pub dims: [u64; 4],
    /// Where the expectations come from.
    pub note: &'a str,
}

/// Writes a case as the folder `cases/NAME`.
///
/// # Errors
/// A name that is no plain word, contents of another size than their parameter, or a full disk.
pub fn write(cases: &Path, launch: &LaunchData<'_>, params: &[ParamData]) -> Result<PathBuf, CaseError> {
    let folder = cases.join(launch.name);
    let fail = |reason: String| CaseError { path: folder.clone(), reason };
    if !is_plain(launch.name) {
        return Err(fail("its name is not made of letters, digits, `.`, `_` and `-`".into()));
    }
    fs::create_dir_all(&folder).map_err(io_error(&folder))?;
    let put = |file: String, bytes: &[u8]| {
        let path = folder.join(&file);
        fs::write(&path, bytes).map_err(io_error(&path)).map(|()| file)
    };
    let is_elf = launch.code.starts_with(b"\x7fELF");
    let code = put(if is_elf { "kernel.cubin" } else { "kernel.ptx" }.into(), launch.code)?;
    let mut out = Vec::with_capacity(params.len());
    for (i, p) in params.iter().enumerate() {
        let sizes = p.input.iter().map(Vec::len).chain(p.expected.iter().map(|e| e.0.len()));
        if let Some(size) = sizes.map(|s| s as u64).find(|s| *s != p.bytes) {
            return Err(fail(format!("`{}` has {} bytes, its contents {size}", p.name, p.bytes)));
        }
        let input = p.input.as_ref().map(|b| put(format!("in{i}.bin"), b)).transpose()?;
        let expected = match &p.expected {
            Some((bytes, element, rule)) => {
                Some(Expected { file: put(format!("out{i}.bin"), bytes)?, element: *element, rule: *rule })
            }
            None => None,
        };
        out.push(CaseParam { name: p.name.clone(), bytes: p.bytes, input, expected });
    }
    let case = Case {
        name: launch.name.into(),
        code,
        symbol: launch.symbol.into(),
        grid: launch.grid,
        threads: launch.threads,
        smem_dynamic_bytes: launch.smem_dynamic_bytes,
        params: out,
        dims: launch.dims,
        note: launch.note.into(),
    };
    let text = serde_json::to_string_pretty(&case).map_err(|e| fail(e.to_string()))?;
    put(CASE_FILE.into(), format!("{text}\n").as_bytes())?;
    Ok(folder)
}

fn is_plain(name: &str) -> bool {
    let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    !name.is_empty() && name.chars().all(fits) && !name.starts_with('.')
}

/// A case as read: its description and the folder its files lie in.
#[derive(Debug, Clone, PartialEq)]
pub struct Stored {
    /// Folder.
    pub folder: PathBuf,
    /// Description.
    pub case: Case,
}

impl Stored {
    /// Reads and checks the description in `folder`.
    ///
    /// # Errors
    /// No description, a malformed one, or one that names files outside its folder.
    pub fn read(folder: &Path) -> Result<Stored, CaseError> {
        let path = folder.join(CASE_FILE);
        let text = fs::read_to_string(&path).map_err(io_error(&path))?;
        let fail = |reason: String| CaseError { path: path.clone(), reason };
        let case: Case = serde_json::from_str(&text).map_err(|e| fail(e.to_string()))?;
        let expected = case.params.iter().filter_map(|p| p.expected.as_ref().map(|e| &e.file));
        let files = case.params.iter().filter_map(|p| p.input.as_ref()).chain(expected).chain([&case.code]);
        for file in files.collect::<BTreeSet<_>>() {
            if !is_plain(file) {
                return Err(fail(format!("`{file}` is not the name of a file beside it")));
            }
        }
        Ok(Stored { folder: folder.into(), case })
    }

    /// Contents of one of its files, which must have `bytes` bytes if that is given.
    ///
    /// # Errors
    /// It cannot be read, or has another size.
    pub fn file(&self, name: &str, bytes: Option<u64>) -> Result<Vec<u8>, CaseError> {
        let path = self.folder.join(name);
        let contents = fs::read(&path).map_err(io_error(&path))?;
        match bytes {
            Some(want) if want != contents.len() as u64 => {
                Err(CaseError { path, reason: format!("{} bytes, not {want}", contents.len()) })
            }
            _ => Ok(contents),
        }
    }
}

/// All cases in a folder, by name.
///
/// # Errors
/// The folder cannot be read, holds no case, or a malformed one.
pub fn read_all(cases: &Path) -> Result<Vec<Stored>, CaseError> {
    let entries = fs::read_dir(cases).map_err(io_error(cases))?;
    let mut folders = Vec::new();
    for entry in entries {
        let path = entry.map_err(io_error(cases))?.path();
        if path.join(CASE_FILE).is_file() {
            folders.push(path);
        }
    }
    folders.sort();
    if folders.is_empty() {
        return Err(CaseError { path: cases.into(), reason: "it holds no cases".into() });
    }
    folders.iter().map(|f| Stored::read(f)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn launch(name: &str) -> LaunchData<'_> {
        LaunchData {
            name,
            code: b".version 8.4\n",
            symbol: "k",
            grid: [3, 1, 1],
            threads: 32,
            smem_dynamic_bytes: 0,
            dims: [3, 1, 8, 1],
            note: "",
        }
    }

    #[test]
    fn what_is_written_reads_back() {
        let dir = tempfile::tempdir().unwrap();
        let rule = Rule::Close { abs: 1e-6, rel: 1e-5, outside: 0.0 };
        let params = [
            ParamData { name: "x".into(), bytes: 3, input: Some(vec![1, 2, 3]), expected: None },
            ParamData { name: "y".into(), bytes: 4, input: None, expected: Some((vec![0; 4], Element::F32, rule)) },
        ];
        write(dir.path(), &launch("b"), &params).unwrap();
        write(dir.path(), &launch("a"), &params).unwrap();
        let cases = read_all(dir.path()).unwrap();
        assert_eq!(cases.iter().map(|c| c.case.name.as_str()).collect::<Vec<_>>(), ["a", "b"]);
        let y = &cases[0].case.params[1];
        assert_eq!((y.bytes, &y.input), (4, &None));
        assert_eq!(y.expected.as_ref().map(|e| (e.element, e.rule)), Some((Element::F32, rule)));
        assert_eq!(cases[0].file("in0.bin", Some(3)).unwrap(), [1, 2, 3]);
        assert!(cases[0].file("in0.bin", Some(4)).is_err());
    }

    #[test]
    fn bad_cases_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        assert!(write(dir.path(), &launch("../x"), &[]).is_err());
        let short = ParamData { name: "x".into(), bytes: 4, input: Some(vec![1]), expected: None };
        assert!(write(dir.path(), &launch("x"), &[short]).unwrap_err().to_string().contains("`x` has 4 bytes"));
        assert!(read_all(&dir.path().join("none")).is_err());
        fs::write(dir.path().join("x").join(CASE_FILE), "{}").unwrap();
        assert!(read_all(dir.path()).unwrap_err().to_string().contains("missing field"));
    }

    #[test]
    fn files_stay_in_their_folder() {
        let dir = tempfile::tempdir().unwrap();
        let folder = write(dir.path(), &launch("x"), &[]).unwrap();
        let path = folder.join(CASE_FILE);
        let text = fs::read_to_string(&path).unwrap().replace("kernel.ptx", "../../secret");
        fs::write(&path, text).unwrap();
        assert!(Stored::read(&folder).unwrap_err().to_string().contains("`../../secret` is not the name"));
    }
}
