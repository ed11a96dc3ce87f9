//! `E01..`: a spec as text: files, YAML, keys, types, values, expressions.

use crate::diag::code::codes;

codes! {
    /// A file cannot be read
    ///
    /// The path does not exist, is a folder, or may not be read. Paths inside a spec are relative to the
    /// folder of that spec.
    E0101_FILE = "E0101";

    /// A file is not UTF-8
    ///
    /// Specs are UTF-8 text. The message gives the first byte that is not; save the file as UTF-8.
    E0102_NOT_UTF8 = "E0102";

    /// A file is too large
    ///
    /// Specs are at most 1 MiB. Layer lists can be written as patterns (`"2..20": 2`).
    E0103_TOO_LARGE = "E0103";

    /// A file is empty
    ///
    /// A spec is a mapping of keys; a file with nothing but comments is none.
    E0104_EMPTY = "E0104";

    /// The text is not valid YAML
    ///
    /// The parser stopped at the place shown. Common causes are tabs in the indentation, a missing colon or
    /// space, and an unclosed quote or bracket.
    E0105_YAML = "E0105";

    /// A key occurs twice
    ///
    /// YAML parsers differ in which one wins, so dsc takes neither. Both places are shown.
    E0106_DUPLICATE_KEY = "E0106";

    /// YAML structure beyond the limits
    ///
    /// Depth, number of nodes and repetition through aliases are bounded, so that a small file cannot ask
    /// for unbounded memory.
    E0107_YAML_LIMIT = "E0107";

    /// An unknown key
    ///
    /// Every key is checked, so that a misspelt one is not ignored. `dsc schema` lists all keys.
    E0108_UNKNOWN_KEY = "E0108";

    /// A key is missing
    ///
    /// The section needs this key and it has no default.
    E0109_MISSING_KEY = "E0109";

    /// A value has the wrong type
    ///
    /// The message says what the key takes and what was found. Numbers in quotes are texts, except that
    /// an integer key also takes an expression (`window + topk`).
    E0110_WRONG_TYPE = "E0110";

    /// A number is out of range
    ///
    /// The message gives the bounds and the reason.
    E0111_OUT_OF_RANGE = "E0111";

    /// A value is none of the choices
    ///
    /// The key takes one of a few words, which the message lists.
    E0112_UNKNOWN_VALUE = "E0112";

    /// An expression does not parse
    ///
    /// Integer keys take `+ - * / %`, parentheses, `ceil(a / b)`, `floor(a / b)`, `min(..)`, `max(..)` and
    /// names of other integer keys.
    E0113_EXPRESSION = "E0113";

    /// An expression has no value
    ///
    /// A name in it is unknown, ambiguous or depends on itself; a division is not exact or by zero; or the
    /// result is negative or too large.
    E0114_EXPRESSION_VALUE = "E0114";

    /// A layer pattern is wrong
    ///
    /// Patterns are layer numbers (`7`), half-open ranges (`2..20`), inclusive ranges (`2..=19`), and
    /// ranges with a step (`2..20 step 6`). A map of patterns has to give each layer exactly one value.
    E0115_LAYERS = "E0115";

    /// A variant has no usable base
    ///
    /// `base` names another spec, relative to the file that says so. Bases may have bases, but no circle.
    E0116_BASE = "E0116";

    /// An override is malformed
    ///
    /// `--set` takes `KEY=VALUE` with a dotted key (`attention.sliding_window`) and a YAML value.
    E0117_SET = "E0117";

    /// A part of the architecture is not supported yet
    ///
    /// The key is known, but dsc cannot build this part of a model yet. Removing it leaves a model that can
    /// be built.
    E0118_NOT_SUPPORTED = "E0118";
}
