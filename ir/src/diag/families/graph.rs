//! `E0210`, `E06..`: graphs and their text form.

use crate::diag::code::codes;

codes! {
    /// Operand shapes disagree
    ///
    /// An operation's inputs do not fit each other; the message shows the shapes found.
    E0210_SHAPE = "E0210";

    /// The text form of a graph does not parse
    ///
    /// The parser stopped at the place shown; it names what it expected there.
    E0601_GRAPH_TEXT = "E0601";

    /// A graph breaks a rule
    ///
    /// The verifier refuses it: a value is used before it is made, a type is not what the operation gives,
    /// or state is touched out of order.
    E0602_GRAPH_RULE = "E0602";
}
