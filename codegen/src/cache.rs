//! The cache of generated kernels, keyed by content. Anything wrong with an entry is a miss, never an error.

use dsc_ir::manifest::GpuCode;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// CPU code of a kernel.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CachedCpu {
    /// CLIF text.
    pub clif: String,
    /// Scratch memory of a call.
    pub scratch_bytes: u64,
    /// Rows at a time.
    pub row_block: u64,
}

/// GPU code of a kernel for one target.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CachedGpu {
    /// PTX text.
    pub ptx: String,
    /// Machine code, where there was an assembler.
    pub cubin: Option<Vec<u8>>,
    /// Launch data, without the paths of a bundle.
    pub code: GpuCode,
}

/// A folder of generated kernels.
#[derive(Debug, Clone)]
pub struct Cache {
    folder: PathBuf,
}

impl Cache {
    /// The user's cache: `$XDG_CACHE_HOME/dsc`, by default `~/.cache/dsc`; absent where neither is known.
    pub fn of_user() -> Option<Cache> {
        let base = std::env::var_os("XDG_CACHE_HOME").filter(|v| !v.is_empty()).map(PathBuf::from);
        let home = || std::env::var_os("HOME").map(|h| PathBuf::from(h).join(".cache"));
        base.or_else(home).map(|b| Cache::at(b.join("dsc")))
    }

    /// A cache in this folder.
    pub fn at(folder: PathBuf) -> Cache {
        Cache { folder }
    }

    /// Entries of one build of dsc never serve another: the generator's own identity is part of the path.
    fn path(&self, kind: &str, hash: &str) -> PathBuf {
        self.folder.join(format!("kernels-{}", generator_id())).join(format!("{hash}.{kind}"))
    }

    /// Code of a kind for a kernel, if it is there and whole.
    pub fn get<T: DeserializeOwned>(&self, kind: &str, hash: &str) -> Option<T> {
        let text = std::fs::read(self.path(kind, hash)).ok()?;
        let (sum, body) = text.split_at_checked(64)?;
        (blake3::hash(body).to_hex().as_bytes() == sum).then(|| serde_json::from_slice(body).ok()).flatten()
    }

    /// Stores code; a failure only costs time later.
    pub fn put<T: Serialize>(&self, kind: &str, hash: &str, code: &T) {
        let path = self.path(kind, hash);
        let Ok(body) = serde_json::to_vec(code) else { return };
        let mut text = blake3::hash(&body).to_hex().as_bytes().to_vec();
        text.extend(body);
        let Some(dir) = path.parent() else { return };
        let temp = dir.join(format!(".{hash}.{kind}.{}.tmp", std::process::id()));
        let stored = std::fs::create_dir_all(dir)
            .and_then(|()| std::fs::write(&temp, &text))
            .and_then(|()| std::fs::rename(&temp, &path));
        if stored.is_err() {
            let _ = std::fs::remove_file(&temp);
        }
    }
}

/// Identity of the generator: the hash of the running program, so that a rebuilt dsc starts afresh.
fn generator_id() -> &'static str {
    static ID: std::sync::OnceLock<String> = std::sync::OnceLock::new();
    ID.get_or_init(|| {
        let program = std::env::current_exe().and_then(std::fs::read).unwrap_or_default();
        blake3::hash(&program).to_hex()[..16].to_string()
    })
}
