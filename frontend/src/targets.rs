//! The targets compiled into dsc: `specs/targets/*.yaml`, by architecture or machine name.

use crate::suggest::nearest;
use crate::validate::quoted;
use crate::yaml::{self, Entry, Node, Value};
use dsc_ir::diag::{Diagnostic, E0401_UNKNOWN_TARGET, E0403_TARGET_FILE, Severity, Source};
use dsc_ir::target::{Capability, Machine, PeakFlops, Target, TargetKind};
use std::sync::LazyLock;

/// Target files, oldest architecture first and the CPU last.
const FILES: [(&str, &str); 8] = [
    ("sm_75", include_str!("../../specs/targets/sm_75.yaml")),
    ("sm_80", include_str!("../../specs/targets/sm_80.yaml")),
    ("sm_86", include_str!("../../specs/targets/sm_86.yaml")),
    ("sm_89", include_str!("../../specs/targets/sm_89.yaml")),
    ("sm_90a", include_str!("../../specs/targets/sm_90a.yaml")),
    ("sm_100a", include_str!("../../specs/targets/sm_100a.yaml")),
    ("sm_120a", include_str!("../../specs/targets/sm_120a.yaml")),
    ("cpu", include_str!("../../specs/targets/cpu.yaml")),
];

/// One target per machine, or what is wrong with the files.
static TARGETS: LazyLock<Result<Vec<Target>, String>> = LazyLock::new(|| {
    let mut targets = Vec::new();
    for (name, text) in FILES {
        targets.extend(read(name, text).map_err(|reason| format!("specs/targets/{name}.yaml: {reason}"))?);
    }
    Ok(targets)
});

/// The target of this architecture (with its default machine) or machine.
pub fn find(name: &str) -> Result<Target, Box<Diagnostic>> {
    let targets = all()?;
    let found = targets.iter().find(|target| target.name == name || target.machine.name == name);
    found.cloned().ok_or_else(|| {
        let names = || targets.iter().flat_map(|target| [target.name.as_str(), target.machine.name.as_str()]);
        let lowered = name.to_lowercase();
        let near = nearest(&lowered, names()).map(|near| format!("did you mean `{near}`?"));
        let mut architectures: Vec<&str> = targets.iter().map(|target| target.name.as_str()).collect();
        architectures.dedup();
        let machines: Vec<&str> = targets.iter().map(|target| target.machine.name.as_str()).collect();
        let finding = Diagnostic::new(E0401_UNKNOWN_TARGET, Severity::Error, None)
            .message(format!("unknown target `{name}`"))
            .note(format!("architectures: {}", quoted(&architectures)))
            .note(format!("machines: {}", quoted(&machines)))
            .help(near);
        Box::new(finding)
    })
}

/// Every target: one per machine, those of an architecture together and its default first.
pub fn all() -> Result<&'static [Target], Box<Diagnostic>> {
    TARGETS
        .as_deref()
        .map_err(|reason| Box::new(Diagnostic::new(E0403_TARGET_FILE, Severity::Error, None).message(reason.clone())))
}

/// The targets of one file.
fn read(name: &str, text: &str) -> Result<Vec<Target>, String> {
    let (root, findings) = yaml::parse(&Source::new(name, text));
    if let Some(finding) = findings.first() {
        return Err(finding.message.clone());
    }
    let root = Section { path: name, node: &root.ok_or("no mapping")? };
    let kind = match root.text("kind")? {
        "cpu" => TargetKind::Cpu,
        _ => {
            let [major, minor] = root.list("compute_capability", int)?[..] else {
                return Err("`compute_capability` takes two numbers".into());
            };
            TargetKind::Cuda { major: narrow(major)?, minor: narrow(minor)? }
        }
    };
    let capability = |node: &Node| text_of(node).and_then(Capability::parse);
    let target = |machine| -> Result<Target, String> {
        Ok(Target {
            name: root.text("name")?.to_owned(),
            kind,
            capabilities: root.list("capabilities", capability)?.into_iter().collect(),
            ptx_isa: narrow(root.int("ptx_isa")?)?,
            llvm_cpu: root.text("llvm_cpu")?.to_owned(),
            llvm_features: root.text("llvm_features")?.to_owned(),
            exact_arch: root.get("exact_arch")?.value == Value::Bool(true),
            min_driver: root.text("min_driver").ok().map(str::to_owned),
            machine,
        })
    };
    let machines = root.get("machines")?.entries().unwrap_or_default();
    machines.iter().map(|entry| target(machine(entry)?)).collect()
}

fn machine(entry: &Entry) -> Result<Machine, String> {
    let section = Section { path: &entry.key, node: &entry.node };
    let peak = Section { path: "peak", node: section.get("peak")? };
    section.text("source")?;
    Ok(Machine {
        name: entry.key.clone(),
        memory_bytes: section.int("memory_bytes")?,
        bandwidth_bytes_per_s: section.float("bandwidth_bytes_per_s")?,
        n_sms: narrow(section.int("n_sms")?)?,
        smem_per_block_bytes: section.int("smem_per_block_bytes")?,
        l2_bytes: section.int("l2_bytes")?,
        peak: PeakFlops {
            bf16: peak.float("bf16")?,
            fp8: peak.float("fp8")?,
            fp4: peak.float("fp4")?,
            f32: peak.float("f32")?,
        },
        launch_us: section.float("launch_us")?,
    })
}

/// A mapping of a target file.
struct Section<'a> {
    path: &'a str,
    node: &'a Node,
}

impl<'a> Section<'a> {
    fn get(&self, key: &str) -> Result<&'a Node, String> {
        self.node.get(key).map(|entry| &entry.node).ok_or_else(|| format!("`{}` lacks `{key}`", self.path))
    }

    fn read<T>(&self, key: &str, read: impl Fn(&'a Node) -> Option<T>) -> Result<T, String> {
        read(self.get(key)?).ok_or_else(|| format!("`{}.{key}` is wrong", self.path))
    }

    fn int(&self, key: &str) -> Result<u64, String> {
        self.read(key, int)
    }

    fn float(&self, key: &str) -> Result<f64, String> {
        self.read(key, |node| match node.value {
            Value::Int(value) => Some(value as f64),
            Value::Float(value) => Some(value),
            _ => None,
        })
    }

    fn text(&self, key: &str) -> Result<&'a str, String> {
        self.read(key, text_of)
    }

    fn list<T>(&self, key: &str, item: impl Fn(&Node) -> Option<T>) -> Result<Vec<T>, String> {
        self.read(key, |node| match &node.value {
            Value::Seq(items) => items.iter().map(&item).collect(),
            _ => None,
        })
    }
}

fn int(node: &Node) -> Option<u64> {
    match node.value {
        Value::Int(value) => u64::try_from(value).ok(),
        _ => None,
    }
}

fn text_of(node: &Node) -> Option<&str> {
    match &node.value {
        Value::Text(text) => Some(&text.text),
        _ => None,
    }
}

fn narrow(value: u64) -> Result<u32, String> {
    u32::try_from(value).map_err(|_| format!("{value} is too large"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_complete_and_consistent() {
        let targets = all().unwrap();
        assert_eq!(targets.len(), 12 + 1);
        for target in targets {
            assert!(target.machine.memory_bytes > 1 << 30 && target.machine.launch_us > 0.0);
            assert_eq!(target.exact_arch, target.name.ends_with('a'), "{}", target.name);
            if !target.is_cpu() {
                assert_eq!(target.llvm_features, format!("+ptx{}", target.ptx_isa));
                assert!(target.has(Capability::Mma) && target.min_driver.is_some());
            }
        }
    }

    #[test]
    fn names_are_architectures_or_machines() {
        assert_eq!(find("sm_90a").unwrap(), find("h200").unwrap());
        assert_eq!(find("h100").unwrap().name, "sm_90a");
        assert!(find("cpu").unwrap().is_cpu());
        let unknown = find("H20").unwrap_err();
        assert_eq!(unknown.help, ["did you mean `h200`?"]);
    }

    #[test]
    fn broken_files_say_why() {
        assert_eq!(read("x", "name: x\nkind: cpu\nmachines: {m: {}}\n").unwrap_err(), "`m` lacks `peak`");
        assert!(read("x", "name: [").is_err());
    }
}
