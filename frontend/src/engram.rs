//! Hash constants of the n-gram memory: multipliers, bucket primes and row offsets.
//!
//! Multipliers are `2 x + 1` with `x` from NumPy's `default_rng(10007 layer).integers(0, high, orders)`, so that
//! products with compressed ids stay below 2^63. Buckets are distinct primes: walking layers, orders and
//! heads, each takes the smallest prime at or above `engram_vocab_size` not used before.

use crate::pcg64::Pcg64;
use crate::spec::Engram;

/// Most buckets of all layers together.
pub const MAX_BUCKETS: usize = 4096;

/// The constants of one layer's memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EngramTable {
    /// The layer.
    pub layer: u32,
    /// One odd factor per look-back, `engram_max_ngram_size` in all.
    pub multipliers: Vec<u64>,
    /// Bucket sizes, by order and then head.
    pub primes: Vec<u64>,
    /// First row of each bucket, in the same order.
    pub offsets: Vec<u64>,
}

impl EngramTable {
    /// Rows of the table.
    pub fn rows(&self) -> u64 {
        self.primes.iter().sum()
    }
}

/// The constants of every layer with a memory.
pub fn tables(engram: &Engram) -> Vec<EngramTable> {
    let orders = engram.engram_max_ngram_size.saturating_sub(1);
    let per_layer = orders.saturating_mul(engram.engram_n_heads) as usize;
    let mut primes = primes_from(engram.engram_vocab_size);
    let table = |&layer: &u32| {
        let primes: Vec<u64> = primes.by_ref().take(per_layer).collect();
        let offsets = primes.iter().scan(0, |next, prime| {
            let offset = *next;
            *next += prime;
            Some(offset)
        });
        let offsets = offsets.collect();
        EngramTable { layer, multipliers: multipliers(engram, layer), offsets, primes }
    };
    engram.engram_layer_ids.iter().map(table).collect()
}

fn multipliers(engram: &Engram, layer: u32) -> Vec<u64> {
    let high = (i64::MAX as u64 / engram.engram_compressed_vocab_size.max(1) / 2).max(1);
    let drawn = Pcg64::new(10007 * u64::from(layer)).integers(high, engram.engram_max_ngram_size as usize);
    drawn.into_iter().map(|x| 2 * x + 1).collect()
}

/// Row of each bucket for one position: `look_back[k]` is the compressed id `k` tokens before it.
pub fn rows(engram: &Engram, table: &EngramTable, look_back: &[u64]) -> Vec<u64> {
    let heads = engram.engram_n_heads as usize;
    let mut hash = 0;
    let mut rows = Vec::with_capacity(table.primes.len());
    for (k, (id, multiplier)) in look_back.iter().zip(&table.multipliers).enumerate() {
        hash ^= id.wrapping_mul(*multiplier);
        if k > 0 {
            let order = (k - 1) * heads..k * heads;
            let buckets = table.primes[order.clone()].iter().zip(&table.offsets[order]);
            rows.extend(buckets.map(|(prime, offset)| hash % prime + offset));
        }
    }
    rows
}

fn primes_from(first: u64) -> impl Iterator<Item = u64> {
    (first..).filter(|n| is_prime(*n))
}

/// Miller and Rabin's test with bases that decide every number below 3.3e24 (Sorenson & Webster, 2015).
fn is_prime(n: u64) -> bool {
    const BASES: [u64; 12] = [2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37];
    if n < 2 {
        return false;
    }
    if let Some(divisor) = BASES.iter().find(|base| n.is_multiple_of(**base)) {
        return n == *divisor;
    }
    let twos = (n - 1).trailing_zeros();
    let odd = (n - 1) >> twos;
    let multiply = |a: u64, b: u64| (u128::from(a) * u128::from(b) % u128::from(n)) as u64;
    let power = |mut base: u64, mut exponent: u64| {
        let mut result = 1;
        while exponent > 0 {
            if exponent & 1 == 1 {
                result = multiply(result, base);
            }
            base = multiply(base, base);
            exponent >>= 1;
        }
        result
    };
    BASES.iter().all(|&base| {
        let mut x = power(base, odd);
        let mut witness = x != 1 && x != n - 1;
        for _ in 1..twos {
            x = multiply(x, x);
            witness &= x != n - 1;
        }
        !witness
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    fn fixture(path: &str) -> Value {
        let path = format!("{}/../tests/fixtures/{path}", env!("CARGO_MANIFEST_DIR"));
        serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
    }

    fn numbers(value: &Value) -> Vec<u64> {
        let number = |v: &Value| v.as_u64().or_else(|| v.as_str()?.parse().ok()).unwrap();
        match value {
            Value::Array(items) => items.iter().flat_map(numbers).collect(),
            one => vec![number(one)],
        }
    }

    fn spec(file: &Value, vocab: u64) -> Engram {
        let int = |key: &str| file[key].as_u64().unwrap();
        Engram {
            engram_layer_ids: numbers(&file["layer_ids"]).iter().map(|l| *l as u32).collect(),
            engram_num_embeddings: Vec::new(),
            engram_max_ngram_size: int("max_ngram_size") as u32,
            engram_n_heads: int("n_heads") as u32,
            engram_head_dim: 32,
            engram_vocab_size: vocab,
            engram_compressed_vocab_size: int("compressed_vocab_size"),
            engram_pad_token_id: 2,
        }
    }

    #[test]
    fn constants_and_rows_of_the_released_sizes() {
        let file = fixture("formats/engram_hash.json");
        let engram = spec(&file, 16_000_000);
        let tables = tables(&engram);
        let sums: Vec<u64> = tables.iter().map(EngramTable::rows).collect();
        assert_eq!(sums, [384_006_168, 384_016_682]);
        for (at, table) in tables.iter().enumerate() {
            assert_eq!(table.primes, numbers(&file["primes"][at]));
            assert_eq!(table.multipliers, numbers(&file["multipliers"][at]));
        }
        let pad = file["pad_compressed_id"].as_u64().unwrap();
        for case in file["cases"].as_array().unwrap() {
            let ids = numbers(&case["compressed_ids"]);
            for at in 0..ids.len() {
                let look_back: Vec<u64> = (0..4).map(|k| at.checked_sub(k).map_or(pad, |p| ids[p])).collect();
                for (layer, table) in tables.iter().enumerate() {
                    assert_eq!(rows(&engram, table, &look_back), numbers(&case["rows"][at][layer]));
                }
            }
        }
    }

    #[test]
    fn constants_of_the_tiny_model() {
        let file = fixture("v41-tiny-a/engram_tables.json");
        for (at, table) in tables(&spec(&file, 61)).iter().enumerate() {
            assert_eq!(table.primes, numbers(&file["primes"][at]));
            assert_eq!(table.offsets, numbers(&file["offsets"][at]));
            assert_eq!(table.multipliers, numbers(&file["multipliers"][at]));
        }
    }

    #[test]
    fn primes() {
        let small: Vec<u64> = primes_from(0).take(12).collect();
        assert_eq!(small, [2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37]);
        assert!(!is_prime(3_215_031_751) && !is_prime(1_000_001) && is_prime(1_000_003));
        assert!(is_prime(18_446_744_073_709_551_557) && !is_prime(u64::MAX));
    }
}
