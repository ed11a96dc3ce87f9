//! Printing and parsing are inverse; parsing takes any text.

use crate::graphs::{build, choices};
use dsc_ir::text::{parse, parse_all, print};
use dsc_ir::verify::verify;
use proptest::prelude::*;

proptest! {
    #[test]
    fn text_round_trips(name in any::<String>(), choices in choices()) {
        let graph = build(name, choices);
        prop_assert!(verify(&graph).is_ok(), "{:?}", verify(&graph).err());
        let text = print(&graph);
        let back = parse(&text);
        prop_assert_eq!(back.as_ref(), Ok(&graph), "{}", text);
        prop_assert_eq!(print(&graph), text);
    }

    #[test]
    fn any_text_is_read_or_refused(text in any::<String>()) {
        let _ = parse(&text);
        let _ = parse_all(&format!("graph g {{ {text} return }}"));
    }

    #[test]
    fn damaged_graphs_are_read_or_refused(choices in choices(), at in any::<usize>(), n in 0usize..9, with in "[%a-z0-9\\[\\](){},.\"\\\\ =:*+-]{0,6}") {
        let mut text = print(&build("g".into(), choices));
        let from = at % text.len();
        let (from, to) = (text.floor_char_boundary(from), text.floor_char_boundary((from + n).min(text.len())));
        text.replace_range(from..to, &with);
        if let Ok(graph) = parse(&text) {
            prop_assert_eq!(parse(&print(&graph)), Ok(graph));
        }
    }
}

#[test]
fn deep_and_long_texts_do_not_overflow() {
    for piece in ["(", "[", "{", "%a: f32[", "\"", "min(", "1 + ", "ceil(", "graph g {", "\\u{", ";", "1"] {
        let long = piece.repeat(200_000);
        assert!(parse(&long).is_err(), "{piece}");
        assert!(parse(&format!("graph g {{ %x: f32[{long}] = input \"x\" return }}")).is_err(), "{piece}");
        assert!(parse(&format!("graph g {{ %x: f32[1] = repeat(%y) {{n = {long}}} return }}")).is_err(), "{piece}");
    }
}
