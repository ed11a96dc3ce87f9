//! Which of a bundle's targets a GPU runs.

use dsc_ir::manifest::Manifest;

/// The best of the bundle's targets that a device of this compute capability runs: an exact match first, then the
/// newest that is not newer than the device.
pub fn choose_target(manifest: &Manifest, (major, minor): (i32, i32)) -> Result<&str, String> {
    let device = i64::from(major) * 10 + i64::from(minor);
    let mut best: Option<(bool, i64, &str)> = None;
    let mut refused = Vec::new();
    for (name, entry) in &manifest.targets {
        let digits: String = name.chars().filter(char::is_ascii_digit).collect();
        let Some(arch) = digits.parse::<i64>().ok().filter(|_| name.starts_with("sm_")) else { continue };
        if arch == device || (!entry.exact_arch && arch < device) {
            let rank = (entry.exact_arch, arch, name.as_str());
            best = Some(best.map_or(rank, |b| b.max(rank)));
        } else {
            let why = if entry.exact_arch { "runs on that architecture alone" } else { "needs a newer GPU" };
            refused.push(format!("{name} {why}"));
        }
    }
    best.map(|(_, _, name)| name).ok_or_else(|| match refused.is_empty() {
        true => "this bundle has no code for GPUs; build it with --target".to_string(),
        false => {
            format!("none of the bundle's targets runs on compute capability {major}.{minor}: {}", refused.join(", "))
        }
    })
}

/// Checks a target that was asked for by name.
pub fn named_target<'m>(manifest: &'m Manifest, name: &str, capability: (i32, i32)) -> Result<&'m str, String> {
    let Some((_, _, entry)) = manifest.targets.get_full(name) else {
        let all: Vec<&str> = manifest.targets.keys().map(String::as_str).collect();
        return Err(format!("this bundle has no target `{name}`; it has {}", all.join(", ")));
    };
    let mut alone = manifest.clone();
    alone.targets = [(name.to_string(), entry.clone())].into_iter().collect();
    choose_target(&alone, capability)?;
    manifest.targets.get_key_value(name).map(|(n, _)| n.as_str()).ok_or_else(String::new)
}

#[cfg(test)]
mod tests {
    use super::*;
    use dsc_ir::manifest::{FORMAT, Model, TargetEntry};

    fn bundle_for(targets: &[(&str, bool)]) -> Manifest {
        let model = Model {
            name: "m".into(),
            vocab_size: 1,
            num_hidden_layers: 1,
            max_position_embeddings: 1,
            tp: 1,
            ep: 1,
            prefill_tail: None,
            engram: None,
        };
        let entry = |exact_arch| TargetEntry { exact_arch, ptx_isa: 80, min_driver: String::new() };
        Manifest {
            format: FORMAT,
            dsc_version: String::new(),
            llvm_version: None,
            model,
            spec_hash: String::new(),
            targets: targets.iter().map(|(n, e)| (n.to_string(), entry(*e))).collect(),
            weights: vec![],
            states: vec![],
            kernels: vec![],
            schedules: vec![],
            files: Default::default(),
        }
    }

    #[test]
    fn targets_are_chosen_by_order() {
        let all =
            bundle_for(&[("cpu", false), ("sm_75", false), ("sm_80", false), ("sm_90a", true), ("sm_100a", true)]);
        assert_eq!(choose_target(&all, (9, 0)), Ok("sm_90a"));
        assert_eq!(choose_target(&all, (8, 9)), Ok("sm_80"));
        assert_eq!(choose_target(&all, (7, 5)), Ok("sm_75"));
        assert_eq!(choose_target(&all, (12, 0)), Ok("sm_80"));
        let hopper = bundle_for(&[("sm_90a", true), ("sm_100a", true)]);
        assert_eq!(
            choose_target(&hopper, (8, 0)),
            Err(
                "none of the bundle's targets runs on compute capability 8.0: sm_90a runs on that architecture alone, \
                 sm_100a runs on that architecture alone"
                    .into()
            )
        );
        assert!(choose_target(&bundle_for(&[("cpu", false)]), (9, 0)).is_err());
    }

    #[test]
    fn targets_are_taken_by_name_where_they_run() {
        let all = bundle_for(&[("cpu", false), ("sm_80", false), ("sm_90a", true)]);
        assert_eq!(named_target(&all, "sm_80", (9, 0)), Ok("sm_80"));
        assert!(named_target(&all, "sm_90a", (8, 9)).unwrap_err().contains("runs on that architecture alone"));
        assert!(named_target(&all, "sm_75", (9, 0)).unwrap_err().contains("it has cpu, sm_80, sm_90a"));
        assert!(named_target(&all, "cpu", (9, 0)).is_err());
    }
}
