//! The written form: what is accepted, and where errors are.

use dsc_ir::graph::{Def, Shard, StateKind, ValueId};
use dsc_ir::text::{parse, parse_all, print};

const EXAMPLE: &str = r#"graph "decode" {
  %0: i32[n_tokens, 8] = input "step"
  %1: f32[n_tokens, 64] = input "x"
  %2: w.fp8_32[64, 64] = weight "attn.wq_a" layer 3 from "layers.3.attn.wq_a" outer 2
  %3: row.fp8[n_seqs, 135, 64] = state "swa" layer 3 ring keep 128
  %6: row.fp4[n_seqs, ceil(n_context, 2), 64] = state "main" layer 3 pages ratio 2
  %4: f32[n_tokens, 64] = linear(%1, %2) {heads = [0]} layer 3 name "attn.u"
  %5: row.fp8[n_tokens, 64] = quantize(%4) {format = fp8} layer 3 name "attn.kv"
  ring_write(%3, %5, %0) layer 3
  return %4, %5
}
"#;

#[test]
fn reads_the_printed_form() {
    let graph = parse(EXAMPLE).unwrap();
    assert_eq!(print(&graph), EXAMPLE);
    assert_eq!(graph.value(ValueId(4)).name, "attn.u");
    assert_eq!(graph.value(ValueId(3)).def, Def::State(StateKind::Ring { keep: 128 }));
    let Def::Weight(source) = &graph.value(ValueId(2)).def else { panic!("a weight") };
    assert_eq!((source.tensor.as_str(), source.shard), ("layers.3.attn.wq_a", Shard::Outer(2)));
    assert_eq!(graph.results, [ValueId(4), ValueId(5)]);
}

#[test]
fn reads_words_for_values() {
    let text =
        "graph g { ; a comment\n %x: f32[n_tokens, 2] = input \"in\"\n %y: bf16[n_tokens, 2] = add(%x, %x) return %y }";
    let graph = parse(text).unwrap();
    assert_eq!(graph.value(ValueId(1)).name, "y");
    assert_eq!(parse(&print(&graph)), Ok(graph.clone()));
    assert_eq!(parse_all(&format!("{text} {text}")).unwrap().len(), 2);
    assert!(parse(&format!("{text} {text}")).is_err());
    assert!(parse("").is_err());
}

fn message(statements: &str) -> String {
    parse(&format!("graph g {{\n%x: f32[n_tokens, 2] = input \"x\"\n{statements}\nreturn }}")).unwrap_err().to_string()
}

#[test]
fn errors_have_a_place() {
    assert_eq!(message("%y: f32[n_tokens, 2] = add(%x, %x"), "4:1: expected `)`");
    assert_eq!(message("%y: f32[n_tokens, 2] = relu"), "4:1: expected `(`");
    assert_eq!(message("%y: f32[n_tokens = add(%x, %x)"), "4:1: expected `]`");
    assert_eq!(message("%y: f33[n_tokens, 2] = add(%x, %x)"), "3:5: `f33` is no dtype");
    assert_eq!(message("%y: f32[n_token, 2] = add(%x, %x)"), "3:8: `n_token` is no dimension");
    assert_eq!(message("%y: f32[n_tokens, 2] = plus(%x, %x)"), "3:24: there is no op `plus`");
    assert_eq!(message("%y: f32[n_tokens, 2] = rms_norm(%x)"), "3:24: `rms_norm` needs a valid attribute `eps`");
    assert_eq!(message("%y: f32[n_tokens, 2] = add(%x, %z)"), "3:32: %z is not defined");
    assert_eq!(message("%y: f32[n_tokens, 2] = add(%x, %y)"), "3:32: %y is used before its definition");
    assert_eq!(message("%x: f32[n_tokens, 2] = input \"z\""), "3:1: %x is defined twice");
    let wrong = "3:1: node 0 (`add`): result %1 is f32[n_tokens, 3], but f32[n_tokens, 2] is inferred";
    assert_eq!(message("%y: f32[n_tokens, 3] = add(%x, %x)"), wrong);
    assert_eq!(message("%y: i32[n_tokens, 2] = add(%x, %x)"), "3:1: `add` cannot produce i32");
    assert_eq!(message("%y: f32[n_tokens, 2] = add(%x, %x) name \"a\", \"b\""), "3:1: 2 names for 1 results");
    assert_eq!(message("%y: f32[n_tokens, 99999999999999999999] = add(%x, %x)").split(':').next(), Some("3"));
    let layer = "%y: f32[n_tokens, 2] = add(%x, %x) layer 4294967296";
    assert_eq!(message(layer), "3:42: 4294967296 is too large");
}
