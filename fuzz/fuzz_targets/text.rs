//! Any text as IR: what parses is well-typed and round-trips.
#![no_main]
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Ok(text) = std::str::from_utf8(data) else { return };
    if let Ok(graph) = dsc_ir::text::parse(text) {
        let printed = dsc_ir::text::print(&graph);
        let again = dsc_ir::text::parse(&printed).expect("what is printed parses");
        assert_eq!(dsc_ir::text::print(&again), printed);
        let _ = dsc_ir::verify::verify(&graph);
    }
});
