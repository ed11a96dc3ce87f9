//! `E04..`: targets.

use crate::diag::code::codes;

codes! {
    /// An unknown target
    ///
    /// `--target` takes an architecture (`sm_90a`, `cpu`) or a machine (`h200`).
    E0401_UNKNOWN_TARGET = "E0401";

    /// The target cannot run a kernel
    ///
    /// A kernel of the schedule has no plan for this target. The message says which one and what it lacks.
    E0402_TARGET_LACKS = "E0402";

    /// A target file is wrong
    ///
    /// The target data compiled into dsc do not parse; this is a defect of dsc.
    E0403_TARGET_FILE = "E0403";
}
