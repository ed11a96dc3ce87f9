//! Arrays that do not fit are errors.

use crate::bench::{Bench, Run};
use dsc_ir::dtype::DType;
use dsc_ir::interp::{Array, Data};

fn bench() -> Bench {
    Bench::new(
        r#"%step: i32[n_tokens, 8] = input "step"
        %table: bf16[3, 2] = weight "embed" from "embed"
        %x: f32[n_tokens, 2] = embed(%table, %step)"#,
    )
}

fn message(b: &mut Bench) -> String {
    b.try_run().unwrap_err().to_string()
}

#[test]
fn names_what_is_missing_or_does_not_fit() {
    let mut b = bench();
    assert_eq!(message(&mut b), "there is no array for `step`");
    b.step(&[Run(0, 0, &[1])]).floats("embed", &[0.; 6]);
    let id = b.id("embed");
    b.values.insert(id, Array::f32(&[3, 2], vec![0.; 6]));
    assert_eq!(message(&mut b), "`embed` is f32 of shape [3, 2], not bf16 of shape [3, 2]");
    let short = Array { ty_dtype: DType::Bf16, shape: vec![3, 2], data: Data::F32(vec![0.; 5]) };
    b.values.insert(id, short);
    assert_eq!(message(&mut b), "`embed`: bf16 of shape [3, 2] needs 6 elements or bytes, not 5");
}

#[test]
fn refuses_bad_tokens_and_step_tables() {
    let mut b = bench();
    b.floats("embed", &[0.; 6]).step(&[Run(0, 0, &[3])]);
    assert_eq!(message(&mut b), "`embed` (node 0, `x`): row 3 is outside the 3 rows");
    for cells in
        [[-1, 0, 0, 0, 0, 1, 0, 0], [1, 5, 0, 0, 0, 1, 0, 0], [1, 0, 0, 0, 0, 2, 0, 0], [1, 0, 0, 0, 1, 1, 0, 0]]
    {
        b.ints("step", cells.to_vec());
        assert!(message(&mut b).contains("step table"), "{cells:?}");
    }
}

#[test]
fn refuses_states_that_are_too_small() {
    let mut b = Bench::new(
        r#"%step: i32[n_tokens, 8] = input "step"
        %x: f32[n_tokens, 1] = input "x"
        %pages: f32[n_seqs, ceil(n_context, 2), 1] = state "pages" pages ratio 2
        page_write(%pages, %x, %step) {ratio = 2}"#,
    );
    b.env.n_context = 2;
    b.step(&[Run(0, 3, &[1])]).floats("x", &[1.]).zeros("pages");
    assert!(message(&mut b).contains("slot 1 is outside a state of shape [1, 1, 1]"));
    b.step(&[Run(1, 1, &[1])]).floats("x", &[1.]);
    assert!(message(&mut b).contains("sequence 1"));
}

#[test]
fn refuses_huge_results() {
    let mut b = Bench::new(
        r#"%x: f32[n_tokens, 2] = input "x"
        %r: f32[n_tokens, 18446744073709551615, 2] = repeat(%x) {n = 18446744073709551615}"#,
    );
    b.floats("x", &[1., 2.]);
    assert!(message(&mut b).contains("too large"));
}
