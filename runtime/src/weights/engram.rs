//! The Engram tables file: the token map that a tokenizer gives, with constants that must be the model's own.

use super::WeightError;
use dsc_ir::manifest::EngramInfo;
use serde::Deserialize;
use std::path::Path;

/// Longest file that is read.
const MAX_BYTES: u64 = 256 << 20;

/// Keys beyond these are not looked at.
#[derive(Debug, Deserialize)]
struct File {
    token_map: Vec<i64>,
    pad_compressed_id: Option<i64>,
    primes: Option<Vec<Vec<Vec<u64>>>>,
    offsets: Option<Vec<Vec<u64>>>,
    /// Decimal texts: they have up to 63 bits.
    multipliers: Option<Vec<Vec<Number>>>,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Number {
    Text(String),
    Int(u64),
}

impl Number {
    fn value(&self) -> Option<u64> {
        match self {
            Number::Text(t) => t.parse().ok(),
            Number::Int(i) => Some(*i),
        }
    }
}

/// A checked tables file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EngramTables {
    /// Compressed id of each token id.
    pub token_map: Vec<i32>,
}

impl EngramTables {
    /// Reads a file and compares its constants with the model's.
    ///
    /// # Errors
    /// An unreadable or malformed file, or one of another model.
    pub fn read(path: &Path, info: &EngramInfo, vocab_size: u64) -> Result<EngramTables, WeightError> {
        let read = |e: std::io::Error| WeightError::Read { path: path.display().to_string(), reason: e.to_string() };
        let fail = |m: String| WeightError::Engram(format!("`{}`: {m}", path.display()));
        if std::fs::metadata(path).map_err(read)?.len() > MAX_BYTES {
            return Err(fail("it is too large".into()));
        }
        let text = std::fs::read(path).map_err(read)?;
        EngramTables::parse(&text, info, vocab_size).map_err(fail)
    }

    /// Checks a file's content.
    ///
    /// # Errors
    /// What does not fit, in words.
    pub fn parse(json: &[u8], info: &EngramInfo, vocab_size: u64) -> Result<EngramTables, String> {
        let file: File = serde_json::from_slice(json).map_err(|e| format!("it is no Engram tables file: {e}"))?;
        let n = file.token_map.len() as u64;
        if n < vocab_size {
            return Err(format!("`token_map` has {n} tokens, the vocabulary {vocab_size}"));
        }
        let compressed = |(id, c): (usize, &i64)| match u64::try_from(*c) {
            Ok(c) if c < info.compressed_vocab_size && c <= i32::MAX as u64 => Ok(c as i32),
            _ => Err(format!("`token_map` maps token {id} to {c}, ids are below {}", info.compressed_vocab_size)),
        };
        let token_map: Vec<i32> = file.token_map.iter().enumerate().map(compressed).collect::<Result<_, _>>()?;
        check_constants(&file, info, &token_map)?;
        Ok(EngramTables { token_map })
    }
}

fn check_constants(file: &File, info: &EngramInfo, token_map: &[i32]) -> Result<(), String> {
    let differ = |what: &str| Err(format!("its `{what}` are not those that follow from the model"));
    if let Some(primes) = &file.primes
        && primes.iter().flatten().flatten().copied().ne(info.primes.iter().copied())
    {
        return differ("primes");
    }
    if let Some(m) = &file.multipliers
        && m.iter().flatten().map(Number::value).ne(info.multipliers.iter().map(|m| Some(*m)))
    {
        return differ("multipliers");
    }
    if let Some(offsets) = &file.offsets
        && *offsets != running_sums(info)
    {
        return differ("offsets");
    }
    let pad = usize::try_from(info.pad_token_id).ok().and_then(|i| token_map.get(i)).copied();
    match (pad, file.pad_compressed_id) {
        (None, _) => Err(format!("the pad token {} is outside `token_map`", info.pad_token_id)),
        (Some(pad), Some(stated)) if i64::from(pad) != stated => {
            Err(format!("`pad_compressed_id` is {stated}, but the pad token maps to {pad}"))
        }
        _ => Ok(()),
    }
}

/// Row offset of each bucket of each layer.
fn running_sums(info: &EngramInfo) -> Vec<Vec<u64>> {
    let per_layer = info.primes.len() / info.layers.len().max(1);
    let sums = |primes: &[u64]| {
        let offset = |sum: &mut u64, p: &u64| {
            let at = *sum;
            *sum = sum.saturating_add(*p);
            Some(at)
        };
        primes.iter().scan(0u64, offset).collect()
    };
    info.primes.chunks(per_layer.max(1)).map(sums).collect()
}
