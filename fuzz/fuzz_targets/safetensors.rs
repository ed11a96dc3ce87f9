//! Any bytes as a checkpoint.
#![no_main]
use libfuzzer_sys::fuzz_target;
use std::io::Write;

fuzz_target!(|data: &[u8]| {
    let path = std::env::temp_dir().join(format!("dsc-fuzz-{}.safetensors", std::process::id()));
    let written = std::fs::File::create(&path).and_then(|mut f| f.write_all(data));
    if written.is_ok()
        && let Ok(checkpoint) = dsc_runtime::checkpoint::Checkpoint::open(&path)
    {
        for name in checkpoint.names() {
            let _ = checkpoint.get(name);
        }
    }
});
