//! Ill-formed graphs are refused.

use dsc_ir::dtype::DType;
use dsc_ir::expr::Expr;
use dsc_ir::graph::{Def, Graph, TensorType, ValueId};
use dsc_ir::op;
use dsc_ir::text::parse;
use dsc_ir::verify::verify;

fn sum() -> Graph {
    let mut graph = Graph::new("g");
    let ty = TensorType::new(DType::F32, [Expr::tokens(), 2.into()]);
    let x = graph.add_value("x", None, ty, Def::Input);
    let y = graph.add(op::Add {}, None, &[x, x], &[("y", DType::F32)]).unwrap();
    let z = graph.add(op::Add {}, None, &[x, y[0]], &[("z", DType::F32)]).unwrap();
    graph.results = z;
    graph
}

fn errors(graph: &Graph) -> String {
    verify(graph).unwrap_err().into_iter().map(|e| e.message).collect::<Vec<_>>().join("; ")
}

#[test]
fn accepts_and_reads_through() {
    let graph = sum();
    let verified = verify(&graph).unwrap();
    assert_eq!(verified.nodes.len(), 2);
    assert_eq!(verified.graph(), &graph);
}

#[test]
fn refuses_broken_assignment() {
    let mut graph = sum();
    graph.nodes.swap(0, 1);
    assert!(errors(&graph).contains("is not defined before it"));
    let mut graph = sum();
    graph.nodes[1].outputs = vec![ValueId(1)];
    assert!(errors(&graph).contains("result %1 is defined elsewhere"));
    let mut graph = sum();
    graph.nodes[1].inputs[1] = ValueId(9);
    assert!(errors(&graph).contains("operand %9 does not exist"));
    let mut graph = sum();
    graph.nodes[1].outputs = vec![ValueId(9)];
    assert!(errors(&graph).contains("result %9 does not exist"));
    let mut graph = sum();
    graph.results = vec![ValueId(7)];
    assert_eq!(errors(&graph), "result %7 does not exist");
}

#[test]
fn refuses_wrong_types_and_names() {
    let mut graph = sum();
    graph.values[2].ty.shape[1] = Expr::Const(3);
    assert!(errors(&graph).contains("result %2 is f32[n_tokens, 3], but f32[n_tokens, 2] is inferred"));
    let mut graph = sum();
    graph.values[2].ty.dtype = DType::I32;
    assert!(errors(&graph).contains("`add` cannot produce i32"));
    let mut graph = sum();
    graph.values[2].name = "y".into();
    assert_eq!(errors(&graph), "%2 (`y`): has the name of %1");
    let mut graph = sum();
    graph.values[2].layer = Some(1);
    assert!(errors(&graph).contains("belongs to another layer"));
}

fn message(statements: &str) -> String {
    let head = r#"%step: i32[n_tokens, 8] = input "step" %x: f32[n_tokens, 2] = input "x"
        %ring: f32[n_seqs, 4, 2] = state "ring" ring keep 4
        %pages: f32[n_seqs, ceil(n_context, 2), 2] = state "pages" pages ratio 2"#;
    parse(&format!("graph g {{ {head} {statements} return }}")).map_or_else(|e| e.message, |_| "fine".into())
}

#[test]
fn states_are_written_by_their_ops_alone() {
    assert_eq!(message("ring_write(%ring, %x, %step)"), "fine");
    assert_eq!(message("page_write(%pages, %x, %step) {ratio = 2}"), "fine");
    assert!(message("%y: f32[n_seqs, 4, 2] = add(%ring, %ring)").contains("is a state, which it cannot read"));
    assert!(message("ring_write(%pages, %x, %step)").contains("does not suit Pages"));
    assert!(message(r#"%o: f32[n_seqs, 4, 2] = input "o" ring_write(%o, %x, %step)"#).contains("which is no state"));
    assert!(message("page_write(%pages, %x, %step) {ratio = 0}").contains('`'));
    let other = r#"%s: f32[n_seqs, 4, 2] = state "s" ring keep 5"#;
    assert!(message(other).contains("too few slots"));
    assert!(message(r#"%s: f32[2, 4, 2] = state "s" ring keep 1"#).contains("the first axis of a state is n_seqs"));
    assert!(message(r#"%s: f32[n_seqs, 4, 2] = state "s" pages ratio 2"#).contains("do not have the type"));
    assert!(message(r#"%w: f32[n_tokens] = weight "w" from "w""#).contains("a weight has constant sizes"));
    assert!(message(r#"%w: row.fp8[2, n_tokens] = input "w""#).contains("must be constant"));
}
