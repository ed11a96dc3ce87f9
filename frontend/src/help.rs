//! Ways out that hold for every finding of a kind, for those that know no better one.

use dsc_ir::diag::{
    Code, Diagnostic, E0105_YAML, E0107_YAML_LIMIT, E0109_MISSING_KEY, E0110_WRONG_TYPE, E0114_EXPRESSION_VALUE,
    E0202_ROPE, E0203_SCALE_GROUP, E0205_NO_SUCH_LAYER, E0207_INDEX_SOURCE, E0208_CANDIDATES, E0209_EXPERTS,
    E0211_ENGRAM, E0212_PARALLEL, E0213_CONFLICT,
};

const GENERAL: [(Code, &str); 14] = [
    (E0105_YAML, "write `key: value` lines, indented by spaces; texts with `:` or `#` in them go in quotes"),
    (E0107_YAML_LIMIT, "no value of a spec lies deeper than a few levels: docs/spec.md shows all of them"),
    (E0109_MISSING_KEY, "docs/spec.md says what every key means, and which may be left out"),
    (E0110_WRONG_TYPE, "docs/spec.md and `dsc schema` say what every key takes"),
    (E0114_EXPRESSION_VALUE, "an expression gives an integer, from integers and the names of keys that hold one"),
    (E0202_ROPE, "rotate fewer channels, or take wider heads"),
    (E0203_SCALE_GROUP, "take a multiple of the group, or a format or arithmetic without groups (`exact`, `bf16`)"),
    (E0205_NO_SUCH_LAYER, "layers count from 0 and end before `num_hidden_layers`"),
    (
        E0207_INDEX_SOURCE,
        "take the layer out of `index.index_source_layer_ids`, or give it a ratio that is selected from",
    ),
    (E0208_CANDIDATES, "name a layer of `index.index_source_layer_ids`"),
    (E0209_EXPERTS, "lower `moe.num_experts_per_tok`, or have more experts"),
    (E0211_ENGRAM, "lower the value to the limit named"),
    (E0212_PARALLEL, "take a number of ranks that splits every size into whole parts, or narrower scale tiles"),
    (E0213_CONFLICT, "change one of the values named"),
];

/// Whether nothing but the message tells what to do.
fn has_none(finding: &Diagnostic) -> bool {
    finding.help.is_empty() && finding.notes.is_empty()
}

/// Gives every error without a way out the general one of its kind.
pub fn complete(findings: &mut [Diagnostic]) {
    for finding in findings.iter_mut().filter(|finding| finding.is_error() && has_none(finding)) {
        let general = GENERAL.iter().find(|(code, _)| *code == finding.code);
        finding.help.extend(general.map(|(_, text)| (*text).to_owned()));
    }
}
