//! Which layers write, select and reuse: every layer that reads compressed rows needs a source of its
//! ratio, and every layer that selects from them an index source.

use super::quoted;
use super::values::Values;
use dsc_ir::diag::{Diagnostic, E0206_KV_SOURCE, E0207_INDEX_SOURCE, E0208_CANDIDATES};

const RATIOS: &str = "compress.compress_ratios";
const KV: &str = "compress.kv_source_layer_ids";
const INDEX: &str = "index.index_source_layer_ids";

pub(super) fn check(v: &Values<'_>, out: &mut Vec<Diagnostic>) {
    let Some(layers) = Layers::new(v) else { return };
    sources(v, &layers, out);
    owners(v, &layers, out);
    if v.has("index") {
        index_sources(v, &layers, out);
        candidates(v, &layers, out);
        candidate_pool(v, out);
    } else {
        no_index(v, &layers, out);
    }
    replay(v, &layers, out);
}

struct Layers<'a> {
    ratios: &'a [u64],
    kv: &'a [u64],
    dense: &'a [u64],
}

impl<'a> Layers<'a> {
    fn new(v: &'a Values<'_>) -> Option<Layers<'a>> {
        Some(Layers { ratios: v.list(RATIOS)?, kv: v.list(KV)?, dense: v.list("compress.dense_ratios")? })
    }

    fn ratio(&self, layer: u64) -> u64 {
        self.ratios.get(layer as usize).copied().unwrap_or_default()
    }

    fn selects(&self, layer: u64) -> bool {
        let ratio = self.ratio(layer);
        ratio > 0 && !self.dense.contains(&ratio)
    }

    fn owner(&self, layer: u64) -> Option<u64> {
        self.kv.iter().copied().filter(|source| *source <= layer).max()
    }

    /// Layers of ratio above 0.
    fn compressed(&self) -> impl Iterator<Item = u64> {
        (0..self.ratios.len() as u64).filter(|layer| self.ratio(*layer) > 0)
    }
}

/// Sources have a ratio.
fn sources(v: &Values<'_>, layers: &Layers<'_>, out: &mut Vec<Diagnostic>) {
    for (at, source) in layers.kv.iter().enumerate().filter(|(_, source)| layers.ratio(**source) == 0) {
        let finding = Diagnostic::error(E0206_KV_SOURCE, v.spans.item(KV, at))
            .message(format!("layer {source} is to write compressed rows, and its ratio is 0"))
            .related(v.spans.item(RATIOS, *source as usize), format!("the ratio of layer {source}"))
            .help("a ratio of 0 is a window-only layer");
        out.push(finding);
    }
}

/// Layers that read compressed rows have a source of the same ratio; one finding per source.
fn owners(v: &Values<'_>, layers: &Layers<'_>, out: &mut Vec<Diagnostic>) {
    let orphans: Vec<u64> = layers.compressed().filter(|layer| layers.owner(*layer).is_none()).collect();
    if let Some(first) = orphans.first() {
        let others = orphans.len() - 1;
        let finding = Diagnostic::error(E0206_KV_SOURCE, v.spans.item(RATIOS, *first as usize))
            .message(format!("layer {first} reads compressed rows, and no layer up to it writes any"))
            .related(v.spans.of(KV), "the layers that write")
            .note((others > 0).then(|| format!("the same holds for {others} more")))
            .help(format!("add {first} to `kv_source_layer_ids`, or give the layer ratio 0"));
        out.push(finding);
    }
    let mut reported: Vec<u64> = Vec::new();
    for layer in layers.compressed() {
        let Some(owner) = layers.owner(layer).filter(|owner| layers.ratio(*owner) > 0) else {
            continue;
        };
        let (own, its) = (layers.ratio(layer), layers.ratio(owner));
        if own != its && !reported.contains(&owner) {
            reported.push(owner);
            let finding = Diagnostic::error(E0206_KV_SOURCE, v.spans.item(RATIOS, layer as usize))
                .message(format!("layer {layer} has ratio {own}, and the rows it reads, of layer {owner}, have {its}"))
                .related(v.spans.item(RATIOS, owner as usize), format!("the ratio of layer {owner}"))
                .help(format!("add {layer} to `kv_source_layer_ids`, or make the ratios equal"));
            out.push(finding);
        }
    }
}

fn no_index(v: &Values<'_>, layers: &Layers<'_>, out: &mut Vec<Diagnostic>) {
    let Some(first) = layers.compressed().find(|layer| layers.selects(*layer)) else {
        return;
    };
    let ratio = layers.ratio(first);
    let finding = Diagnostic::error(E0207_INDEX_SOURCE, v.spans.item(RATIOS, first as usize))
        .message(format!("layer {first} has to select among compressed rows, and there is no `index` section"))
        .help(format!("add `index`, or `dense_ratios: [{ratio}]` to attend every row of that ratio"));
    out.push(finding);
}

fn index_sources(v: &Values<'_>, layers: &Layers<'_>, out: &mut Vec<Diagnostic>) -> Option<()> {
    let sources = v.list(INDEX)?;
    if sources.is_empty() {
        let finding = v.error(E0207_INDEX_SOURCE, INDEX).message("no layer is an index source");
        out.push(finding.help("remove the `index` section (`index: null` in a variant)"));
    }
    for (at, source) in sources.iter().enumerate().filter(|(_, source)| !layers.selects(**source)) {
        let ratio = layers.ratio(*source);
        let reason = if ratio == 0 { "is window only" } else { "attends every row of its ratio" };
        let finding = Diagnostic::error(E0207_INDEX_SOURCE, v.spans.item(INDEX, at))
            .message(format!("layer {source} is to select, and it {reason}"))
            .related(v.spans.item(RATIOS, *source as usize), format!("its ratio is {ratio}"));
        out.push(finding);
    }
    for (at, source) in layers.kv.iter().enumerate() {
        if layers.selects(*source) && !sources.contains(source) {
            let finding = Diagnostic::error(E0207_INDEX_SOURCE, v.spans.item(KV, at))
                .message(format!("layer {source} writes compressed rows, and it is no index source"))
                .related(v.spans.of(INDEX), "the index sources")
                .note("a selection made from other rows would not fit them")
                .help(format!("add {source} to `index_source_layer_ids`"));
            out.push(finding);
        }
    }
    Some(())
}

fn candidates(v: &Values<'_>, layers: &Layers<'_>, out: &mut Vec<Diagnostic>) -> Option<()> {
    let path = "index.candidates.candidate_source_layer_id";
    let (source, sources) = (v.int(path)?, v.list(INDEX)?);
    if !sources.contains(&source) {
        let shown: Vec<String> = sources.iter().map(u64::to_string).collect();
        let shown: Vec<&str> = shown.iter().map(String::as_str).collect();
        let finding = v
            .error(E0208_CANDIDATES, path)
            .message(format!("layer {source} is to pick candidate blocks, and it is no index source"))
            .related(v.spans.of(INDEX), format!("index sources are {}", quoted(&shown).replace('`', "")));
        out.push(finding);
    }
    if let Some(at) = layers.kv.iter().position(|kv| *kv > source) {
        let later = layers.kv.get(at).copied().unwrap_or_default();
        let finding = Diagnostic::error(E0208_CANDIDATES, v.spans.item(KV, at))
            .message(format!("layer {later} writes new rows after layer {source} picked candidate blocks"))
            .related(v.spans.of(path), "the layer that picks")
            .help("blocks of other rows mean nothing there; pick them at the last source");
        out.push(finding);
    }
    Some(())
}

/// The pool holds enough rows even if its newest block has just one.
fn candidate_pool(v: &Values<'_>, out: &mut Vec<Diagnostic>) -> Option<()> {
    let blocks_path = "index.candidates.candidate_topk_blocks";
    let (blocks, size) = (v.int(blocks_path)?, v.int("index.candidates.candidate_block_size")?);
    let topk = v.int("index.index_topk")?;
    let pool = (blocks - 1) * size + 1;
    if pool < topk {
        let needed = (topk - 1).div_ceil(size) + 1;
        let finding = v
            .error(E0208_CANDIDATES, blocks_path)
            .message(format!("{blocks} candidate blocks of {size} hold as few as {pool} rows, and {topk} are selected"))
            .related(v.spans.of("index.index_topk"), format!("{topk} rows are selected"))
            .note("the newest block may hold a single row")
            .help(format!("`candidate_topk_blocks: {needed}` would do"));
        out.push(finding);
    }
    Some(())
}

/// A tail is cut after a source.
fn replay(v: &Values<'_>, layers: &Layers<'_>, out: &mut Vec<Diagnostic>) -> Option<()> {
    if v.text("prefill.decoder_rows")? == "tail" && layers.kv.is_empty() {
        let finding = v
            .error(E0206_KV_SOURCE, "prefill.decoder_rows")
            .message("`tail` replays the end of a prompt through the layers after the last source, and there is none")
            .related(v.spans.of(KV), "no layer writes compressed rows")
            .help("`decoder_rows: all` runs every prompt row through every layer, which is exact");
        out.push(finding);
    }
    Some(())
}
