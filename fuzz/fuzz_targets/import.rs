//! Any text as a published configuration.
#![no_main]
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let imported = dsc_frontend::import::import("config.json", text);
    let _ = dsc_frontend::render(&imported.findings, &imported.sources, Default::default());
    if let Some(yaml) = imported.yaml {
        let _ = dsc_frontend::load_str("imported.yaml", &yaml, &[]);
    }
});
