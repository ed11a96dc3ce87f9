//! No text makes the front end panic, hang or accept what it cannot render.

use dsc_frontend::{expr, import, load_str};
use dsc_ir::diag::Style;
use proptest::prelude::*;

const SPEC: &str = include_str!("../../specs/tiny-v41.yaml");
const CONFIG: &str = include_str!("../../tests/fixtures/v4-tiny/config.json");

/// Pieces that are likely to upset a parser or a check.
fn piece() -> impl Strategy<Value = String> {
    let awkward = [
        "",
        "0",
        "-1",
        "1e308",
        ".nan",
        "18446744073709551616",
        "null",
        "~",
        "[]",
        "{}",
        "[1, 2",
        "&a",
        "*a",
        "!!x",
        "- ",
        ": ",
        "\n",
        "\t",
        "#",
        "\"",
        "'",
        "|",
        ">",
        "..",
        "2..",
        "2..=0",
        "0.. step 0",
        "ceil(",
        "%",
        "hidden_size",
        "tiny",
        "true",
        "é",
        "\u{0}",
        "\u{feff}",
        "mla: 1",
        "base: x",
        "<<: 1",
        "? a",
        "---",
    ];
    prop_oneof![
        3 => proptest::sample::select(awkward.map(str::to_owned).to_vec()),
        1 => any::<u64>().prop_map(|n| n.to_string()),
        1 => "\\PC{0,8}",
    ]
}

/// `text` with some slices replaced.
fn spoilt(text: &'static str) -> impl Strategy<Value = String> {
    let edit = (0..text.len(), 0..12_usize, piece());
    proptest::collection::vec(edit, 1..4).prop_map(move |edits| {
        let mut spoilt = text.to_owned();
        for (at, len, piece) in edits {
            let boundary = |mut at: usize| {
                at = at.min(spoilt.len());
                while !spoilt.is_char_boundary(at) {
                    at -= 1;
                }
                at
            };
            let (start, end) = (boundary(at), boundary(at + len));
            spoilt.replace_range(start..end.max(start), &piece);
        }
        spoilt
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn specs(text in spoilt(SPEC)) {
        let loaded = load_str("a.yaml", &text, &[]);
        let shown = loaded.render(Style { colour: true });
        prop_assert!(loaded.checked.is_some() || shown.contains("error["));
    }

    #[test]
    fn overrides(set in "[a-z_.]{0,24}=?", value in piece()) {
        let loaded = load_str("a.yaml", SPEC, &[format!("{set}{value}"), format!("attention.head_dim={value}")]);
        loaded.render(Style::default());
    }

    #[test]
    fn configurations(text in spoilt(CONFIG)) {
        let imported = import::import("config.json", &text);
        let shown = imported.render(Style::default());
        prop_assert!(imported.yaml.is_some() || shown.contains("error["));
    }

    #[test]
    fn expressions(text in "[0-9a-z_+*/%(). -]{0,40}", any in "\\PC{0,20}") {
        for text in [text, any] {
            let _ = expr::evaluate(&text, &mut |_| Ok(i128::from(i64::MAX)));
            let _ = expr::layers(&text, 40, &mut |_| Ok(3));
        }
    }
}
