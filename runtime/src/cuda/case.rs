//! Conformance cases: one launch each, as a folder with `case.json`, the code, and a file for every input and
//! expected result. A folder of such folders travels to a machine that has a GPU and nothing else. Random inputs do
//! not travel: their recipes do.

use crate::check::Recipe;
use dsc_ir::dtype::DType;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Name of the description in a case's folder.
pub const CASE_FILE: &str = "case.json";

/// Name of the file beside the cases that lists what has none.
pub const SKIPPED_FILE: &str = "skipped.json";

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
    pub dims: [u64; 5],
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
    /// File with its contents before the launch; all bytes are 0xFF (NaN) without one and without `random`.
    pub input: Option<String>,
    /// How to make its contents before the launch, in place of a file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub random: Option<Recipe>,
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
    /// Sums of products: each element within one ulp of its type at the expected value plus
    /// `products 2^-22` times the root mean square of its row. With random operands `sum |a b|` is about
    /// `sqrt(products)` times the size of the results, so that is `sqrt(products) 2^-22 sum |a b|`.
    Sum {
        /// Products that one result adds up.
        products: f64,
        /// Elements of a row.
        row: u64,
        /// Share of elements (and one, unless it is 0) that may lie outside, by no more than their row's size:
        /// behind a rounding or a choice inside the kernel.
        outside: f64,
    },
    /// Packed rows, of bytes: equal, but for a share of the values (and one) that may have a neighbouring code,
    /// as values do that lie at a rounding boundary before they are packed. Rows that the launch must not change
    /// are not counted.
    Codes {
        /// Packed type.
        dtype: DType,
        /// Channels of a row.
        channels: u64,
        /// Share of values that may have a neighbouring code.
        outside: f64,
    },
}

/// A kernel without a case.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Skipped {
    /// Name that its case would have.
    pub name: String,
    /// Why it has none.
    pub reason: String,
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

/// Contents before a launch.
#[derive(Debug, Clone, PartialEq)]
pub enum Contents {
    /// A file of its own.
    Bytes(Vec<u8>),
    /// Made again where the case runs.
    Random(Recipe),
}

/// A parameter of a case to be written.
#[derive(Debug, Clone, PartialEq)]
pub struct ParamData {
    /// For people.
    pub name: String,
    /// Size in bytes.
    pub bytes: u64,
    /// Contents before the launch.
    pub input: Option<Contents>,
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
    pub dims: [u64; 5],
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
        let (input, random) = match &p.input {
            Some(Contents::Bytes(bytes)) => (Some(bytes), None),
            Some(Contents::Random(recipe)) => (None, Some(recipe.clone())),
            None => (None, None),
        };
        let sizes = input.iter().map(|b| b.len()).chain(p.expected.iter().map(|e| e.0.len()));
        if let Some(size) = sizes.map(|s| s as u64).find(|s| *s != p.bytes) {
            return Err(fail(format!("`{}` has {} bytes, its contents {size}", p.name, p.bytes)));
        }
        let input = input.map(|b| put(format!("in{i}.bin"), b)).transpose()?;
        let expected = match &p.expected {
            Some((bytes, element, rule)) => {
                Some(Expected { file: put(format!("out{i}.bin"), bytes)?, element: *element, rule: *rule })
            }
            None => None,
        };
        out.push(CaseParam { name: p.name.clone(), bytes: p.bytes, input, random, expected });
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

/// Writes which kernels have no case.
///
/// # Errors
/// A full disk.
pub fn write_skipped(cases: &Path, skipped: &[Skipped]) -> Result<(), CaseError> {
    let path = cases.join(SKIPPED_FILE);
    let text =
        serde_json::to_string_pretty(skipped).map_err(|e| CaseError { path: path.clone(), reason: e.to_string() })?;
    fs::write(&path, text + "\n").map_err(io_error(&path))
}

/// Which kernels have no case, where that is known.
///
/// # Errors
/// A malformed list.
pub fn read_skipped(cases: &Path) -> Result<Vec<Skipped>, CaseError> {
    let path = cases.join(SKIPPED_FILE);
    if !path.is_file() {
        return Ok(Vec::new());
    }
    let text = fs::read_to_string(&path).map_err(io_error(&path))?;
    serde_json::from_str(&text).map_err(|e| CaseError { path, reason: e.to_string() })
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

impl Stored {
    /// Contents of all parameters before the launch.
    ///
    /// # Errors
    /// A file that cannot be read, a recipe that gives another size, or too little memory.
    pub fn inputs(&self) -> Result<Vec<Vec<u8>>, CaseError> {
        self.case.params.iter().map(|p| self.input(p)).collect()
    }

    fn input(&self, p: &CaseParam) -> Result<Vec<u8>, CaseError> {
        let fail = |reason: String| CaseError { path: self.folder.clone(), reason: format!("`{}`: {reason}", p.name) };
        if let Some(file) = &p.input {
            return self.file(file, Some(p.bytes));
        }
        if let Some(recipe) = &p.random {
            return Ok(recipe.make(p.bytes).map_err(fail)?.as_ref().to_vec());
        }
        let bytes = usize::try_from(p.bytes).unwrap_or(usize::MAX);
        let mut filled = Vec::new();
        filled.try_reserve_exact(bytes).map_err(|e| fail(e.to_string()))?;
        filled.resize(bytes, POISON);
        Ok(filled)
    }
}

/// Byte that fills results before a launch: a NaN in every float format.
const POISON: u8 = 0xFF;

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
            dims: [3, 1, 8, 1, 0],
            note: "",
        }
    }

    #[test]
    fn what_is_written_reads_back() {
        let dir = tempfile::tempdir().unwrap();
        let rule = Rule::Close { abs: 1e-6, rel: 1e-5, outside: 0.0 };
        let recipe = Recipe::Rows { seed: 3, stream: "z".into(), dtype: DType::F32, channels: 2 };
        let input = |input| ParamData { name: "x".into(), bytes: 8, input: Some(input), expected: None };
        let params = [
            input(Contents::Bytes(vec![1; 8])),
            ParamData { name: "y".into(), bytes: 4, input: None, expected: Some((vec![0; 4], Element::F32, rule)) },
            input(Contents::Random(recipe.clone())),
        ];
        write(dir.path(), &launch("b"), &params).unwrap();
        write(dir.path(), &launch("a"), &params).unwrap();
        let cases = read_all(dir.path()).unwrap();
        assert_eq!(cases.iter().map(|c| c.case.name.as_str()).collect::<Vec<_>>(), ["a", "b"]);
        let y = &cases[0].case.params[1];
        assert_eq!((y.bytes, &y.input), (4, &None));
        assert_eq!(y.expected.as_ref().map(|e| (e.element, e.rule)), Some((Element::F32, rule)));
        assert!(cases[0].file("in0.bin", Some(4)).is_err());
        let made = recipe.make(8).unwrap();
        assert_eq!(cases[0].inputs().unwrap(), [vec![1; 8], vec![0xFF; 4], made.as_ref().to_vec()]);
        assert_eq!(read_skipped(dir.path()).unwrap(), []);
        let skipped = [Skipped { name: "c".into(), reason: "too large".into() }];
        write_skipped(dir.path(), &skipped).unwrap();
        assert_eq!(read_skipped(dir.path()).unwrap(), skipped);
    }

    #[test]
    fn bad_cases_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        assert!(write(dir.path(), &launch("../x"), &[]).is_err());
        let short = ParamData { name: "x".into(), bytes: 4, input: Some(Contents::Bytes(vec![1])), expected: None };
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
