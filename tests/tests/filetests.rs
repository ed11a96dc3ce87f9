//! Graphs in text form with questions in their comments: `; test verify`, `; test fuse PHASE TARGET`, `; test loops`,
//! `; test clif`. Answers are snapshots.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a failing helper is a failing test

use dsc_codegen::lower::{LowerOptions, lower};
use dsc_codegen::{cpu, loops};
use dsc_ir::graph::Graph;
use dsc_ir::schedule::{Phase, Schedule};
use dsc_ir::{text, verify};
use dsc_passes::Numerics;
use dsc_passes::pipeline::{self, Config, Select};
use dsc_tests::target;
use std::fmt::Write as _;

fn compile(graph: &Graph, phase: Phase, name: &str) -> (Schedule, Vec<dsc_passes::remark::Remark>) {
    let target = target(name);
    let numerics = Numerics { linear_inputs_fp8: false, wo_a_fp8: false };
    let config = Config { phase, target: &target, numerics, select: Select::All };
    let made = pipeline::run(graph, &[], &config, None).unwrap();
    (made.schedule, made.remarks)
}

fn fused(graph: &Graph, phase: &str, target: &str) -> String {
    let phase = Phase::ALL.into_iter().find(|p| p.name() == phase).unwrap();
    let (schedule, remarks) = compile(graph, phase, target);
    let mut out = String::new();
    for l in &schedule.launches {
        let k = &schedule.kernels[l.kernel as usize];
        let ops: Vec<&str> = k.graph.nodes.iter().map(|n| n.op.name()).collect();
        writeln!(out, "{} ({}): {}", k.name, k.anchor, ops.join(", ")).unwrap();
    }
    for r in remarks {
        writeln!(out, "{} {}: {}: {}", if r.taken { "+" } else { "-" }, r.pass, r.what, r.reason).unwrap();
    }
    out
}

fn programs(graph: &Graph) -> Vec<loops::Func> {
    let (schedule, _) = compile(graph, Phase::Decode, "sm_90a");
    let options = LowerOptions::cpu(4);
    schedule.kernels.iter().map(|k| lower(k, &k.name, &options).unwrap()).collect()
}

fn answer(source: &str, question: &str) -> String {
    let graph = match text::parse(source) {
        Ok(graph) => graph,
        Err(e) => return format!("{e}\n"),
    };
    let words: Vec<&str> = question.split_whitespace().collect();
    match words[..] {
        ["verify"] => match verify::verify(&graph) {
            Ok(_) => {
                assert_eq!(text::parse(&text::print(&graph)).unwrap(), graph, "round trip");
                "valid\n".to_string()
            }
            Err(errors) => errors.iter().map(|e| format!("{e}\n")).collect(),
        },
        ["fuse", phase, target] => fused(&graph, phase, target),
        ["loops"] => programs(&graph).iter().map(ToString::to_string).collect(),
        ["clif"] => programs(&graph).iter().map(|f| cpu::emit(f).unwrap()).collect(),
        _ => panic!("no such question: {question}"),
    }
}

#[test]
fn filetests() {
    insta::glob!("../filetests", "**/*.dsir", |path| {
        let source = std::fs::read_to_string(path).unwrap();
        let mut out = String::new();
        for question in source.lines().filter_map(|l| l.strip_prefix("; test ")) {
            writeln!(out, "== {question}\n{}", answer(&source, question)).unwrap();
        }
        insta::with_settings!({ omit_expression => true, prepend_module_to_snapshot => false }, {
            insta::assert_snapshot!(out);
        });
    });
}
