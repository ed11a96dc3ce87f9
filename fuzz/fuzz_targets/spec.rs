//! Any text as a spec: findings or a spec that lowers, never a panic.
#![no_main]
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let loaded = dsc_frontend::load_str("fuzz.yaml", text, &[]);
    let _ = loaded.render(Default::default());
    if let Some(checked) = loaded.checked
        && checked.spec.num_hidden_layers <= 64
    {
        // A checked spec always lowers; an error here is a defect.
        for phase in dsc_ir::schedule::Phase::ALL {
            dsc_frontend::lower::lower(&checked.spec, phase).expect("a checked spec lowers");
        }
    }
});
