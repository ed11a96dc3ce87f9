//! Runs every case of a folder on the GPU.

use super::buffer::Buffer;
use super::case::{CaseError, Expected, Rule, Skipped, Stored, read_all, read_skipped};
use super::compare::{Comparison, compare};
use super::device::{CudaError, Device, LaunchShape};
use dsc_ir::expr::Env;
use std::fmt;
use std::path::Path;

/// Launches for the time.
const REPEATS: u32 = 10;
/// Most of all packed values that may have a neighbouring code: those within 4 f32 ulp of a boundary are about as
/// many, since neighbouring codes of E4M3 lie 2^20 ulp apart.
const NEIGHBOURS: f64 = 1e-5;

/// What came of one case.
#[derive(Debug, Clone, PartialEq)]
pub struct CaseResult {
    /// Name of the case.
    pub name: String,
    /// Elements compared.
    pub elements: u64,
    /// Elements that differ at all.
    pub different: u64,
    /// Elements beyond their rule.
    pub outside: u64,
    /// Values in packed rows that the launch wrote, and how many have a neighbouring code.
    pub packed: [u64; 2],
    /// Largest error over what was allowed.
    pub worst: f64,
    /// Mean time of a launch, where the case passed.
    pub micros: Option<f64>,
    /// Why it failed; empty where it passed.
    pub failures: Vec<String>,
}

/// What came of a folder of cases.
#[derive(Debug, Clone, PartialEq)]
pub struct ConformanceTable {
    /// The GPU.
    pub device: String,
    /// One a case, by name.
    pub results: Vec<CaseResult>,
    /// Kernels without a case.
    pub skipped: Vec<Skipped>,
}

/// Why cases could not be run.
#[derive(Debug, thiserror::Error)]
pub enum ConformanceError {
    /// A folder that is no folder of cases.
    #[error(transparent)]
    Case(#[from] CaseError),
    /// The GPU.
    #[error(transparent)]
    Cuda(#[from] CudaError),
}

impl ConformanceTable {
    /// Whether all cases passed.
    pub fn passed(&self) -> bool {
        let [_, neighbours, allowed] = self.packed();
        self.results.iter().all(|r| r.failures.is_empty()) && neighbours <= allowed
    }

    /// Packed values of all cases, how many have a neighbouring code, and how many may.
    fn packed(&self) -> [u64; 3] {
        let sum = |i: usize| self.results.iter().map(|r| r.packed[i]).sum::<u64>();
        [sum(0), sum(1), 1.max((sum(0) as f64 * NEIGHBOURS) as u64)]
    }
}

impl fmt::Display for ConformanceTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.device)?;
        writeln!(f, "result  elements  different  outside  worst/allowed        us  case")?;
        for r in &self.results {
            let word = if r.failures.is_empty() { "ok" } else { "FAILED" };
            let micros = r.micros.map_or("-".into(), |t| format!("{t:.1}"));
            let (n, different, outside) = (r.elements, r.different, r.outside);
            writeln!(f, "{word:<6}  {n:>8}  {different:>9}  {outside:>7}  {:>13.3}  {micros:>8}  {}", r.worst, r.name)?;
            for failure in &r.failures {
                writeln!(f, "        {failure}")?;
            }
        }
        for s in &self.skipped {
            writeln!(f, "skipped {}: {}", s.name, s.reason)?;
        }
        let [values, neighbours, allowed] = self.packed();
        let verdict = if neighbours > allowed { ": FAILED" } else { "" };
        writeln!(f, "{values} packed values, {neighbours} with a neighbouring code, {allowed} allowed{verdict}")?;
        let failed = self.results.iter().filter(|r| !r.failures.is_empty()).count();
        let passed = self.results.len() - failed;
        writeln!(f, "{passed} passed, {failed} failed, {} skipped", self.skipped.len())
    }
}

/// Runs all cases of a folder on GPU 0: each twice from the same inputs, whose results must be equal bit for bit,
/// and then for the time.
///
/// # Errors
/// No driver or GPU, or a folder that is no folder of cases. What goes wrong with one case is in its result.
pub fn conformance(folder: &Path) -> Result<ConformanceTable, ConformanceError> {
    let cases = read_all(folder)?;
    let skipped = read_skipped(folder)?;
    let device = Device::open(0)?;
    let (major, minor) = device.capability()?;
    let results = cases.iter().map(|c| run(&device, c)).collect();
    Ok(ConformanceTable { device: format!("{}, sm_{major}{minor}", device.name()?), results, skipped })
}

fn run(device: &Device, stored: &Stored) -> CaseResult {
    let mut result = CaseResult {
        name: stored.case.name.clone(),
        elements: 0,
        different: 0,
        outside: 0,
        packed: [0; 2],
        worst: 0.0,
        micros: None,
        failures: Vec::new(),
    };
    if let Err(e) = try_run(device, stored, &mut result) {
        result.failures.push(e.to_string());
    }
    result
}

fn try_run(device: &Device, stored: &Stored, result: &mut CaseResult) -> Result<(), ConformanceError> {
    let case = &stored.case;
    let kernel = device.load(&stored.file(&case.code, None)?, &case.symbol)?;
    let shape = LaunchShape { grid: case.grid, threads: case.threads, smem_bytes: case.smem_dynamic_bytes };
    let [n_tokens, n_seqs, n_context, n_out_rows, n_tail_rows] = case.dims;
    let dims = Env { n_tokens, n_seqs, n_context, n_out_rows, n_tail_rows };
    let inputs = stored.inputs()?;
    let once = || -> Result<(Vec<Buffer>, Vec<Vec<u8>>), CudaError> {
        let buffers = inputs.iter().map(|b| device.upload(b)).collect::<Result<Vec<_>, _>>()?;
        device.launch(&kernel, shape, &buffers.iter().collect::<Vec<_>>(), &dims)?;
        device.finish(&kernel)?;
        let outputs = buffers.iter().map(|b| device.read(b)).collect::<Result<Vec<_>, _>>()?;
        Ok((buffers, outputs))
    };
    let (_, first) = once()?;
    let (buffers, second) = once()?;
    for (param, (input, (a, b))) in case.params.iter().zip(inputs.iter().zip(first.iter().zip(&second))) {
        if a != b {
            result.failures.push(format!("`{}` differs between two runs", param.name));
        }
        let Some(expected) = &param.expected else {
            if input != a {
                result.failures.push(format!("`{}` was changed", param.name));
            }
            continue;
        };
        let want = stored.file(&expected.file, Some(param.bytes))?;
        let compared = compare(input, &want, a, expected.element, expected.rule);
        result.add(&param.name, expected, &compared);
    }
    if result.failures.is_empty() {
        result.micros = Some(device.time(&kernel, shape, &buffers.iter().collect::<Vec<_>>(), &dims, REPEATS)?);
    }
    Ok(())
}

impl CaseResult {
    fn add(&mut self, name: &str, expected: &Expected, c: &Comparison) {
        self.elements += c.elements;
        self.different += c.different;
        self.outside += c.outside;
        self.worst = self.worst.max(c.worst);
        if matches!(expected.rule, Rule::Codes { .. }) {
            self.packed[0] += c.elements;
            self.packed[1] += c.outside;
        }
        if !c.holds {
            let first = c.first.as_deref().unwrap_or("");
            self.failures.push(format!("`{name}`: {} of {} elements, first {first}", c.outside, c.elements));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables() {
        let result = |name: &str, failures: &[&str]| CaseResult {
            name: name.into(),
            elements: 100,
            different: 3,
            outside: failures.len() as u64,
            packed: [50, 1],
            worst: 0.25,
            micros: failures.is_empty().then_some(4.5),
            failures: failures.iter().map(|s| (*s).into()).collect(),
        };
        let results = vec![result("a", &[]), result("b", &["`y`: 1 of 100 elements, first [0] is 1, not 2"])];
        let skipped = vec![Skipped { name: "c".into(), reason: "too large".into() }];
        let table = ConformanceTable { device: "GPU".into(), results, skipped };
        assert!(!table.passed());
        let want = "GPU
result  elements  different  outside  worst/allowed        us  case
ok           100          3        0          0.250       4.5  a
FAILED       100          3        1          0.250         -  b
        `y`: 1 of 100 elements, first [0] is 1, not 2
skipped c: too large
100 packed values, 2 with a neighbouring code, 1 allowed: FAILED
1 passed, 1 failed, 1 skipped
";
        assert_eq!(table.to_string(), want);
    }

    #[test]
    fn a_folder_without_cases_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        assert!(matches!(conformance(dir.path()), Err(ConformanceError::Case(_))));
    }
}
