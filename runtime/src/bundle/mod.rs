//! Bundles: what a compiler wrote, read back and checked before anything of it is used.
//!
//! A bundle is a folder or one `.tar.zst` of it. Every file must be listed in the manifest with its length and
//! BLAKE3 hash, and [`MANIFEST_HASH`] beside it holds the manifest's own. Contents stay in memory, so that what
//! was verified is what runs.

mod source;
mod validate;

use dsc_ir::manifest::{self, Manifest};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// File with the BLAKE3 hash of the manifest in hex. A bundle may lack it; then damage that leaves the manifest
/// valid goes unseen.
pub const MANIFEST_HASH: &str = "manifest.blake3";

pub use source::{MAX_BUNDLE_BYTES, MAX_FILES};

/// Why a bundle is refused.
#[derive(Debug, thiserror::Error)]
pub enum BundleError {
    /// There is no such file or folder, or it cannot be read.
    #[error("cannot read `{}`: {reason}", path.display())]
    Read {
        /// The path.
        path: PathBuf,
        /// The system's reason.
        reason: std::io::Error,
    },
    /// An archive that cannot be unpacked.
    #[error("`{}` is no readable .tar.zst: {reason}", path.display())]
    Archive {
        /// The path.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// There is no manifest.
    #[error("this is no bundle: it has no `{}`", manifest::FILE)]
    NoManifest,
    /// The manifest is no valid JSON of a manifest.
    #[error("`{file}` is malformed: {0}", file = manifest::FILE)]
    Manifest(String),
    /// Another format version.
    #[error("the bundle has format {0}, this runtime reads format {known}", known = manifest::FORMAT)]
    Format(u64),
    /// A path that leads out of the bundle.
    #[error("the bundle names a file `{0}`, which is no plain path below the bundle")]
    Path(String),
    /// A listed file that is not there.
    #[error("the bundle lacks its file `{0}`")]
    Missing(String),
    /// A file that the manifest does not list.
    #[error("the bundle holds a file `{0}` that its manifest does not list")]
    Unlisted(String),
    /// A file of another length.
    #[error("the bundle's file `{file}` has {got} bytes, its manifest says {want}")]
    Length {
        /// Path in the bundle.
        file: String,
        /// Listed length.
        want: u64,
        /// Actual length.
        got: u64,
    },
    /// A file of another content.
    #[error("the bundle's file `{0}` is damaged: its BLAKE3 hash is not the manifest's")]
    Hash(String),
    /// More than any bundle needs.
    #[error("the bundle is too large: {0}")]
    TooLarge(String),
    /// Entries of the manifest that contradict each other.
    #[error("`{file}`: {0}", file = manifest::FILE)]
    Inconsistent(String),
    /// A file that should be text.
    #[error("the bundle's file `{0}` is not UTF-8 text")]
    NotText(String),
}

impl BundleError {
    /// Exit code of a command that fails with it: 3 for unreadable paths, 2 for bad content.
    pub fn exit_code(&self) -> u8 {
        match self {
            BundleError::Read { .. } => 3,
            _ => 2,
        }
    }
}

/// A verified bundle.
#[derive(Debug, Clone)]
pub struct Bundle {
    /// Its manifest.
    pub manifest: Manifest,
    files: BTreeMap<String, Vec<u8>>,
}

impl Bundle {
    /// Reads and verifies a bundle folder or `.tar.zst`.
    ///
    /// # Errors
    /// Anything that is not exactly as the manifest says.
    pub fn load(path: &Path) -> Result<Bundle, BundleError> {
        let files = source::read(path)?;
        Bundle::from_files(files)
    }

    /// Verifies files that were read elsewhere, by path, the manifest among them.
    ///
    /// # Errors
    /// As [`Bundle::load`].
    pub fn from_files(mut files: BTreeMap<String, Vec<u8>>) -> Result<Bundle, BundleError> {
        let text = files.remove(manifest::FILE).ok_or(BundleError::NoManifest)?;
        if let Some(hash) = files.remove(MANIFEST_HASH)
            && hash.trim_ascii_end() != blake3::hash(&text).to_hex().as_bytes()
        {
            return Err(BundleError::Hash(manifest::FILE.into()));
        }
        let manifest = parse_manifest(&text)?;
        check_files(&manifest, &files)?;
        validate::manifest(&manifest).map_err(BundleError::Inconsistent)?;
        Ok(Bundle { manifest, files })
    }

    /// Content of a listed file.
    ///
    /// # Errors
    /// There is no such file.
    pub fn bytes(&self, file: &str) -> Result<&[u8], BundleError> {
        self.files.get(file).map(Vec::as_slice).ok_or_else(|| BundleError::Missing(file.to_string()))
    }

    /// Content of a listed text file.
    ///
    /// # Errors
    /// There is no such file, or it is no text.
    pub fn text(&self, file: &str) -> Result<&str, BundleError> {
        std::str::from_utf8(self.bytes(file)?).map_err(|_| BundleError::NotText(file.to_string()))
    }

    /// Paths and sizes of all files but the manifest.
    pub fn files(&self) -> impl Iterator<Item = (&str, usize)> {
        self.files.iter().map(|(k, v)| (k.as_str(), v.len()))
    }
}

/// The format is looked at first, so that an unknown version is named as such.
fn parse_manifest(bytes: &[u8]) -> Result<Manifest, BundleError> {
    let text = std::str::from_utf8(bytes).map_err(|_| BundleError::NotText(manifest::FILE.into()))?;
    let json: serde_json::Value = serde_json::from_str(text).map_err(|e| BundleError::Manifest(e.to_string()))?;
    match json.get("format").and_then(serde_json::Value::as_u64) {
        Some(f) if f == u64::from(manifest::FORMAT) => {}
        Some(f) => return Err(BundleError::Format(f)),
        None => return Err(BundleError::Manifest("it names no `format`".into())),
    }
    Manifest::from_json(text).map_err(|e| BundleError::Manifest(e.to_string()))
}

fn check_files(manifest: &Manifest, files: &BTreeMap<String, Vec<u8>>) -> Result<(), BundleError> {
    for (name, entry) in &manifest.files {
        if !source::is_plain(name) || name == manifest::FILE {
            return Err(BundleError::Path(name.clone()));
        }
        let content = files.get(name).ok_or_else(|| BundleError::Missing(name.clone()))?;
        let got = content.len() as u64;
        if got != entry.bytes {
            return Err(BundleError::Length { file: name.clone(), want: entry.bytes, got });
        }
        if blake3::hash(content).to_hex().as_str() != entry.blake3 {
            return Err(BundleError::Hash(name.clone()));
        }
    }
    match files.keys().find(|name| !manifest.files.contains_key(*name)) {
        Some(name) => Err(BundleError::Unlisted(name.clone())),
        None => Ok(()),
    }
}
