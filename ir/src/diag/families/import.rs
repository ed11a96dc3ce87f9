//! `E05..`, `W05..`: import of published configurations.

use crate::diag::code::codes;

codes! {
    /// The configuration is not JSON
    ///
    /// `dsc import` reads the `config.json` of a published model.
    E0501_JSON = "E0501";

    /// An unknown model type
    ///
    /// `dsc import` knows the `model_type`s `deepseek_v41` and `deepseek_v4`.
    E0502_MODEL_TYPE = "E0502";

    /// A key of the configuration is missing
    ///
    /// The model type needs it and its value has no default.
    E0503_IMPORT_MISSING = "E0503";

    /// A value of the configuration is not understood
    ///
    /// The key is known, but it has the wrong type or a value that dsc has no meaning for.
    E0504_IMPORT_VALUE = "E0504";

    /// A key of the configuration was not used
    ///
    /// The spec does not depend on it. Harmless for tokenizer ids and training settings; worth a look for
    /// anything else.
    W0510_IMPORT_UNUSED = "W0510";

    /// A part of the model was left out
    ///
    /// Draft stages and vision towers are not built yet; the spec describes the model without them.
    W0511_IMPORT_LEFT_OUT = "W0511";
}
