//! Any text as the manifest of a bundle.
#![no_main]
use libfuzzer_sys::fuzz_target;
use std::collections::BTreeMap;

fuzz_target!(|data: &[u8]| {
    let files = BTreeMap::from([("manifest.json".to_string(), data.to_vec())]);
    let _ = dsc_runtime::bundle::Bundle::from_files(files);
});
