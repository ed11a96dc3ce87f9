//! Prompts: token ids on the command line or in a JSON file.

use serde::Deserialize;
use std::path::{Path, PathBuf};

/// Longest file that is read.
const MAX_BYTES: u64 = 256 << 20;

/// Why prompts are refused.
#[derive(Debug, thiserror::Error)]
pub enum PromptError {
    /// The file cannot be read.
    #[error("cannot read the prompts `{}`: {reason}", path.display())]
    Read {
        /// The path.
        path: PathBuf,
        /// The system's reason.
        reason: std::io::Error,
    },
    /// Neither ids nor a file of them.
    #[error("{0}")]
    Malformed(String),
    /// A prompt without tokens.
    #[error("prompt {0} is empty")]
    Empty(usize),
    /// A token that the model does not have.
    #[error("prompt {prompt} has token id {id}, the vocabulary has {vocab_size}")]
    Vocabulary {
        /// Prompt number.
        prompt: usize,
        /// The id.
        id: i64,
        /// Ids are below it.
        vocab_size: u64,
    },
    /// More tokens than the model has positions.
    #[error("prompt {prompt} with its new tokens needs {needed} positions, the model has {limit}")]
    Context {
        /// Prompt number.
        prompt: usize,
        /// Positions needed.
        needed: u64,
        /// Positions there are.
        limit: u64,
    },
}

impl PromptError {
    /// Exit code of a command that fails with it.
    pub fn exit_code(&self) -> u8 {
        if matches!(self, PromptError::Read { .. }) { 3 } else { 2 }
    }
}

#[derive(Deserialize)]
#[serde(untagged)]
enum File {
    List(Vec<Vec<i64>>),
    Object { prompts: Vec<Vec<i64>> },
    Single(Vec<i64>),
}

/// Reads `1,2,3` as one prompt, anything else as a file's path.
///
/// # Errors
/// An unreadable or malformed file, or no prompt.
pub fn read(argument: &str) -> Result<Vec<Vec<i64>>, PromptError> {
    let ids: Result<Vec<i64>, _> = argument.split(',').map(|t| t.trim().parse()).collect();
    let prompts = match ids {
        Ok(ids) => vec![ids],
        Err(_) if argument.trim().is_empty() => return Err(PromptError::Empty(0)),
        Err(_) if looks_like_ids(argument) && !Path::new(argument).exists() => {
            return Err(PromptError::Malformed(format!("`{argument}` is neither token ids such as 1,2,3 nor a file")));
        }
        Err(_) => file(Path::new(argument))?,
    };
    if prompts.is_empty() {
        return Err(PromptError::Malformed("there is no prompt".into()));
    }
    Ok(prompts)
}

/// Whether someone meant ids, not a file: numbers and what separates them.
fn looks_like_ids(argument: &str) -> bool {
    argument.chars().all(|c| c.is_ascii_digit() || " ,;+-.".contains(c))
}

fn file(path: &Path) -> Result<Vec<Vec<i64>>, PromptError> {
    let read = |reason| PromptError::Read { path: path.into(), reason };
    if std::fs::metadata(path).map_err(read)?.len() > MAX_BYTES {
        return Err(PromptError::Malformed(format!("`{}` is too large", path.display())));
    }
    let text = std::fs::read(path).map_err(read)?;
    match serde_json::from_slice(&text) {
        Ok(File::List(prompts) | File::Object { prompts }) => Ok(prompts),
        Ok(File::Single(ids)) => Ok(vec![ids]),
        Err(_) => Err(PromptError::Malformed(format!(
            "`{}` is neither a list of lists of token ids nor an object with `prompts`",
            path.display()
        ))),
    }
}

/// Prompts that a model can take, with the positions that `max_new_tokens` more need.
///
/// # Errors
/// An empty prompt, an unknown id, too many positions.
pub fn check(
    prompts: &[Vec<i64>],
    max_new_tokens: u64,
    vocab_size: u64,
    limit: u64,
) -> Result<Vec<Vec<i32>>, PromptError> {
    let one = |(prompt, ids): (usize, &Vec<i64>)| {
        if ids.is_empty() {
            return Err(PromptError::Empty(prompt));
        }
        let needed = positions(ids.len(), max_new_tokens);
        if needed > limit {
            return Err(PromptError::Context { prompt, needed, limit });
        }
        let known = |id: &i64| match u64::try_from(*id) {
            Ok(u) if u < vocab_size => i32::try_from(u).ok(),
            _ => None,
        };
        let id = |id: &i64| known(id).ok_or(PromptError::Vocabulary { prompt, id: *id, vocab_size });
        ids.iter().map(id).collect()
    };
    prompts.iter().enumerate().map(one).collect()
}

/// Positions that a prompt and its new tokens take: the last new token is never fed back.
pub fn positions(prompt: usize, max_new_tokens: u64) -> u64 {
    (prompt as u64).saturating_add(max_new_tokens.saturating_sub(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_on_the_command_line() {
        assert_eq!(read("1, 2,3").unwrap(), [vec![1, 2, 3]]);
        assert!(matches!(read(""), Err(PromptError::Empty(0))));
        assert!(matches!(read("no/such/file.json"), Err(PromptError::Read { .. })));
    }

    #[test]
    fn prompts_that_a_model_cannot_take() {
        assert_eq!(check(&[vec![0, 9]], 4, 10, 5).unwrap(), [[0, 9]]);
        assert!(matches!(check(&[vec![0, 9]], 5, 10, 5), Err(PromptError::Context { needed: 6, .. })));
        assert!(matches!(check(&[vec![1], vec![]], 1, 10, 5), Err(PromptError::Empty(1))));
        assert!(matches!(check(&[vec![10]], 1, 10, 5), Err(PromptError::Vocabulary { .. })));
        assert!(matches!(check(&[vec![-1]], 1, 10, 5), Err(PromptError::Vocabulary { .. })));
    }
}
