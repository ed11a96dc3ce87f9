//! Why a command did not do its work, and the exit code that follows.

use dsc_frontend::Loaded;
use dsc_ir::diag::{self, Diagnostic, E0101_FILE, E0304_KV_BUDGET, E0305_LAUNCH_BUDGET, SourceMap, Style};
use dsc_ir::graph::TypeError;
use serde_json::{Value, json};

/// Why a command did not do its work.
#[derive(Debug)]
pub enum Failure {
    /// Findings about the input, at least one of them an error.
    Findings {
        /// Errors and warnings.
        findings: Vec<Diagnostic>,
        /// The texts they point into.
        sources: SourceMap,
    },
    /// The input or the command line is wrong.
    Input(String),
    /// The machine is wrong: a file, the driver, the toolchain.
    Machine(String),
    /// dsc is wrong.
    Defect(String),
    /// Nobody reads the output any more, as behind `| head`: no error.
    NoReader,
    /// An error of a shared command, with its own exit code; the last word on what it wrote is its own.
    Command {
        /// What it says.
        message: String,
        /// Its exit code.
        exit_code: u8,
    },
}

/// Exit code of a check that failed.
pub const CHECK_FAILED: u8 = 1;
/// Exit code of wrong input.
pub const INPUT_WRONG: u8 = 2;
/// Exit code of a wrong machine.
pub const MACHINE_WRONG: u8 = 3;

impl Failure {
    /// The failure of a spec that did not load.
    pub fn of_spec(loaded: Loaded) -> Failure {
        Failure::Findings { findings: loaded.findings, sources: loaded.sources }
    }

    /// The failure of one finding that needs no source text.
    pub fn of(finding: Diagnostic) -> Failure {
        Failure::Findings { findings: vec![finding], sources: SourceMap::new() }
    }

    /// Exit code.
    pub fn exit_code(&self) -> u8 {
        match self {
            Failure::Findings { findings, .. } => findings_code(findings),
            Failure::Input(_) => INPUT_WRONG,
            Failure::Machine(_) | Failure::Defect(_) => MACHINE_WRONG,
            Failure::Command { exit_code, .. } => *exit_code,
            Failure::NoReader => 0,
        }
    }

    /// Text for people.
    pub fn render(&self, style: Style) -> String {
        match self {
            Failure::NoReader => String::new(),
            Failure::Findings { findings, sources } => diag::render_all(findings, sources, style),
            Failure::Defect(message) => format!("error: {message}; this is a defect of dsc, please report it\n"),
            Failure::Input(message) | Failure::Machine(message) | Failure::Command { message, .. } => {
                format!("error: {message}\n")
            }
        }
    }

    /// The JSON document of a command that failed.
    pub fn to_json(&self) -> Value {
        let exit_code = self.exit_code();
        match self {
            Failure::NoReader => Value::Null,
            Failure::Findings { findings, .. } => json!({"ok": false, "exit_code": exit_code, "findings": findings}),
            Failure::Input(message)
            | Failure::Machine(message)
            | Failure::Defect(message)
            | Failure::Command { message, .. } => json!({"ok": false, "exit_code": exit_code, "error": message}),
        }
    }
}

/// A file that cannot be read is the machine's fault, an exceeded budget a failed check, all else the input's.
fn findings_code(findings: &[Diagnostic]) -> u8 {
    let mut errors = findings.iter().filter(|finding| finding.is_error());
    let mut codes = errors.clone().map(|finding| finding.code);
    if errors.any(|finding| finding.code == E0101_FILE && finding.span().is_none()) {
        MACHINE_WRONG
    } else if codes.all(|code| code == E0304_KV_BUDGET || code == E0305_LAUNCH_BUDGET) {
        CHECK_FAILED
    } else {
        INPUT_WRONG
    }
}

impl From<TypeError> for Failure {
    fn from(error: TypeError) -> Failure {
        Failure::Defect(format!("the op graph is ill-typed: {error}"))
    }
}

impl From<Box<Diagnostic>> for Failure {
    fn from(finding: Box<Diagnostic>) -> Failure {
        Failure::of(*finding)
    }
}

impl From<serde_json::Error> for Failure {
    fn from(error: serde_json::Error) -> Failure {
        Failure::Defect(format!("cannot write JSON: {error}"))
    }
}

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Failure {
        if error.kind() == std::io::ErrorKind::BrokenPipe {
            return Failure::NoReader;
        }
        Failure::Machine(format!("cannot write the output: {error}"))
    }
}
