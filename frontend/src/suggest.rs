//! Did-you-mean.

/// The candidate nearest to `word`, if it is near enough to be meant.
pub fn nearest<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let word: Vec<char> = word.to_lowercase().chars().take(64).collect();
    let limit = (word.len() / 3).max(1);
    let near = candidates.into_iter().map(|candidate| (distance(&word, candidate), candidate));
    near.filter(|(d, _)| *d <= limit).min_by_key(|(d, _)| *d).map(|(_, candidate)| candidate)
}

/// Edit distance with swaps of neighbours (optimal string alignment).
fn distance(a: &[char], b: &str) -> usize {
    let b: Vec<char> = b.to_lowercase().chars().collect();
    let mut before: Vec<usize> = Vec::new();
    let mut above: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.iter().enumerate() {
        let mut row = vec![i + 1];
        for (j, y) in b.iter().enumerate() {
            let change = above[j] + usize::from(x != y);
            let mut best = change.min(above[j + 1] + 1).min(row[j] + 1);
            if i > 0 && j > 0 && *x == b[j - 1] && a[i - 1] == *y {
                best = best.min(before[j - 1] + 1);
            }
            row.push(best);
        }
        before = std::mem::replace(&mut above, row);
    }
    above.last().copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::nearest;

    #[test]
    fn near_words() {
        let keys = ["sliding_window", "head_dim", "q_lora_rank"];
        assert_eq!(nearest("slidng_window", keys), Some("sliding_window"));
        assert_eq!(nearest("haed_dim", keys), Some("head_dim"));
        assert_eq!(nearest("Head_Dim", keys), Some("head_dim"));
        assert_eq!(nearest("x", keys), None);
        assert_eq!(nearest("", keys), None);
    }
}
