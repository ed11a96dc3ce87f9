//! Bundles: the same from a folder and an archive, and refused by name when anything is not as listed.
#![allow(clippy::unwrap_used)] // helpers of tests

mod common;

use common::Files;
use dsc_ir::expr::Expr;
use dsc_ir::manifest::Manifest;
use dsc_ir::schedule::Arg;
use dsc_runtime::bundle::{Bundle, BundleError, MANIFEST_HASH};
use proptest::prelude::*;

fn refused(files: Files) -> String {
    let e = Bundle::from_files(files).unwrap_err();
    assert_eq!(e.exit_code(), 2);
    e.to_string()
}

fn refused_manifest(change: impl FnOnce(&mut Manifest)) -> String {
    let mut m = common::manifest();
    change(&mut m);
    refused(common::seal(m, common::contents()))
}

#[test]
fn folder_and_archive_are_the_same() {
    let dir = tempfile::tempdir().unwrap();
    let files = common::bundle();
    let folder = dir.path().join("b");
    common::write_folder(&folder, &files);
    let archive = dir.path().join("b.tar.zst");
    std::fs::write(&archive, common::archive(&files)).unwrap();
    let (a, b) = (Bundle::load(&folder).unwrap(), Bundle::load(&archive).unwrap());
    assert_eq!(a.manifest, b.manifest);
    assert!(a.files().eq(b.files()));
    assert_eq!(a.text("kernels/embed.clif").unwrap(), common::EMBED);
}

#[test]
fn missing_paths_are_the_machines_fault() {
    let e = Bundle::load("/no/such/bundle".as_ref()).unwrap_err();
    assert!(matches!(e, BundleError::Read { .. }));
    assert_eq!(e.exit_code(), 3);
    let dir = tempfile::tempdir().unwrap();
    assert!(matches!(Bundle::load(dir.path()), Err(BundleError::NoManifest)));
}

#[test]
fn damaged_files_are_named() {
    let name = "kernels/embed.clif";
    // Without the hash of the manifest itself, so that what is behind it is reached.
    let with = |change: &dyn Fn(&mut Files)| {
        let mut files = common::bundle();
        files.remove(MANIFEST_HASH);
        change(&mut files);
        refused(files)
    };
    let hash = with(&|f| f.get_mut(name).unwrap()[9] ^= 4);
    assert!(hash.contains(name) && hash.contains("BLAKE3"), "{hash}");
    let short = with(&|f| f.get_mut(name).unwrap().truncate(50));
    assert!(short.contains(name) && short.contains("bytes"), "{short}");
    let missing = with(&|f| drop(f.remove(name)));
    assert!(missing.contains(name) && missing.contains("lacks"), "{missing}");
    let extra = with(&|f| drop(f.insert("kernels/extra.ptx".into(), vec![1])));
    assert!(extra.contains("kernels/extra.ptx"), "{extra}");
    let mut files = common::bundle();
    files.get_mut("manifest.json").unwrap().push(b' ');
    assert!(refused(files).contains("`manifest.json` is damaged"));
    assert!(with(&|f| drop(f.remove("manifest.json"))).contains("no bundle"));
    assert!(with(&|f| f.get_mut("manifest.json").unwrap().truncate(100)).contains("malformed"));
    assert!(with(&|f| f.get_mut("manifest.json").unwrap()[0] = 0xFF).contains("UTF-8"));
}

#[test]
fn unknown_formats_and_fields_are_named() {
    assert!(refused_manifest(|m| m.format = 7).contains("format 7"));
    let mut files = common::bundle();
    files.remove(MANIFEST_HASH);
    let text = String::from_utf8(files["manifest.json"].clone()).unwrap();
    files.insert("manifest.json".into(), text.replacen("\"model\"", "\"modle\"", 1).into_bytes());
    assert!(refused(files).contains("modle"));
}

#[test]
fn paths_stay_inside() {
    for bad in ["../x", "/etc/passwd", "a/../../x", "a//b", "./x", "a\\b", "c:x", ""] {
        let message = refused_manifest(|m| {
            let entry = m.files.values().next().cloned();
            let entry = entry.unwrap_or(dsc_ir::manifest::FileEntry { bytes: 0, blake3: String::new() });
            m.files.insert(bad.into(), entry);
        });
        assert!(message.contains("plain path"), "{bad}: {message}");
    }
    let dir = tempfile::tempdir().unwrap();
    common::write_folder(dir.path(), &common::bundle());
    #[cfg(unix)]
    {
        std::os::unix::fs::symlink("/etc/hostname", dir.path().join("kernels/link")).unwrap();
        assert!(matches!(Bundle::load(dir.path()), Err(BundleError::Path(_))));
    }
}

#[test]
fn entries_must_fit_each_other() {
    type Change = fn(&mut Manifest);
    let cases: [(&str, Change); 17] = [
        ("kernel 9", |m| m.schedules[0].launches[0].kernel = 9),
        ("binds 2 of the 3", |m| drop(m.schedules[0].launches[0].args.pop())),
        ("no buffer 7", |m| m.schedules[0].launches[0].args[2] = Arg::Buffer(7)),
        ("no weight 5", |m| m.schedules[0].launches[0].args[1] = Arg::Weight(5)),
        ("no state 3", |m| m.schedules[1].launches[1].args[2] = Arg::State(3)),
        ("no input `pets`", |m| m.schedules[0].launches[0].args[0] = Arg::Input("pets".into())),
        ("a weight for a output", |m| m.schedules[0].launches[0].args[2] = Arg::Weight(0)),
        ("before it is made", |m| m.schedules[0].launches.swap(0, 1)),
        ("is bound to", |m| m.schedules[0].launches[0].args[2] = Arg::Buffer(1)),
        ("lives in slot", |m| m.schedules[0].buffers[0].slot = u32::MAX),
        ("probe `logits` reads", |m| m.schedules[0].probes[0].after = 3),
        ("no probe `logits`", |m| m.schedules[0].probes.clear()),
        ("too many elements", |m| m.weights[0].shape = vec![1 << 40, 1 << 40]),
        ("constant rows and columns", |m| m.weights[0].shape = vec![]),
        ("no split", |m| m.weights[0].shard = "outer:0".into()),
        ("bytes of scratch", |m| m.kernels[0].cpu.as_mut().unwrap().scratch_bytes = 1 << 50),
        ("not listed", |m| m.kernels[0].graph = "elsewhere".into()),
    ];
    for (expected, change) in cases {
        let message = refused_manifest(change);
        assert!(message.contains(expected), "expected `{expected}` in `{message}`");
    }
    assert!(refused_manifest(|m| m.kernels[1].name = "embed".into()).contains("two kernels"));
    assert!(refused_manifest(|m| m.states[0].shape.push(Expr::Const(1))).contains("4 axes"));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn flipped_archives_are_refused(at in any::<prop::sample::Index>(), bit in 0u8..8) {
        let mut bytes = common::archive(&common::bundle());
        let i = at.index(bytes.len());
        bytes[i] ^= 1 << bit;
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), &bytes).unwrap();
        // A flip in padding or in a frame's optional fields may leave the content intact; nothing else may pass.
        if let Ok(b) = Bundle::load(file.path()) {
            let same = Bundle::from_files(common::bundle()).unwrap();
            prop_assert!(b.files().eq(same.files()) && b.manifest == same.manifest);
        }
    }

    #[test]
    fn cut_archives_are_refused(at in any::<prop::sample::Index>()) {
        let mut bytes = common::archive(&common::bundle());
        bytes.truncate(at.index(bytes.len() - 64));
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), &bytes).unwrap();
        prop_assert_eq!(Bundle::load(file.path()).unwrap_err().exit_code(), 2);
    }

    #[test]
    fn changed_manifests_never_panic(at in any::<prop::sample::Index>(), text in "[0-9a-z\"{}\\[\\]*+(),:_]{0,6}") {
        let mut files = common::bundle();
        files.remove(MANIFEST_HASH);
        let manifest = files.get_mut("manifest.json").unwrap();
        let i = at.index(manifest.len());
        let end = (i + text.len().max(1)).min(manifest.len());
        manifest.splice(i..end, text.bytes());
        let _ = Bundle::from_files(files);
    }
}
