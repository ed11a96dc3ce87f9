//! Reading all files of a bundle from a folder or an archive, within limits.

use super::BundleError;
use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Read};
use std::path::Path;

/// Most bytes of a bundle's files together.
pub const MAX_BUNDLE_BYTES: u64 = 4 << 30;
/// Most files of a bundle.
pub const MAX_FILES: usize = 100_000;
/// Deepest folder of a bundle.
const MAX_DEPTH: usize = 8;

type Files = BTreeMap<String, Vec<u8>>;

/// Whether a path is relative, of plain names, and the same on every system.
pub(super) fn is_plain(path: &str) -> bool {
    let plain = |name: &str| !name.is_empty() && name != "." && name != ".." && !name.contains(['\\', ':', '\0']);
    path.len() <= 1024 && path.split('/').count() <= MAX_DEPTH && path.split('/').all(plain)
}

/// Files gathered so far.
struct Gather {
    files: Files,
    bytes: u64,
}

impl Gather {
    fn add(&mut self, name: String, content: impl Read) -> Result<Result<(), BundleError>, io::Error> {
        if self.files.len() >= MAX_FILES {
            return Ok(Err(BundleError::TooLarge(format!("it has more than {MAX_FILES} files"))));
        }
        let mut data = Vec::new();
        let room = MAX_BUNDLE_BYTES - self.bytes;
        content.take(room + 1).read_to_end(&mut data)?;
        if data.len() as u64 > room {
            return Ok(Err(BundleError::TooLarge(format!("its files have more than {MAX_BUNDLE_BYTES} bytes"))));
        }
        self.bytes += data.len() as u64;
        if self.files.contains_key(&name) {
            return Ok(Err(BundleError::Path(format!("{name} (twice)"))));
        }
        self.files.insert(name, data);
        Ok(Ok(()))
    }
}

/// All files of a folder or `.tar.zst`.
pub(super) fn read(path: &Path) -> Result<Files, BundleError> {
    let meta = fs::metadata(path).map_err(|reason| BundleError::Read { path: path.into(), reason })?;
    let mut gather = Gather { files: Files::new(), bytes: 0 };
    if meta.is_dir() {
        if !path.join(dsc_ir::manifest::FILE).exists() {
            return Err(BundleError::NoManifest);
        }
        folder(path, "", &mut gather)?;
    } else {
        archive(path, &mut gather)?;
    }
    Ok(gather.files)
}

fn folder(dir: &Path, prefix: &str, gather: &mut Gather) -> Result<(), BundleError> {
    let fail = |reason| BundleError::Read { path: dir.into(), reason };
    for entry in fs::read_dir(dir).map_err(fail)? {
        let entry = entry.map_err(fail)?;
        let name = entry.file_name();
        let name = format!("{prefix}{}", name.to_str().ok_or_else(|| BundleError::Path(format!("{prefix}{name:?}")))?);
        if !is_plain(&name) {
            return Err(BundleError::Path(name));
        }
        let path = entry.path();
        let kind = entry.file_type().map_err(fail)?;
        if kind.is_dir() {
            folder(&path, &format!("{name}/"), gather)?;
        } else if kind.is_file() {
            let content = fs::File::open(&path).and_then(|f| gather.add(name, f));
            content.map_err(|reason| BundleError::Read { path: path.clone(), reason })??;
        } else {
            // Links and devices could lead anywhere.
            return Err(BundleError::Path(format!("{name} (no regular file)")));
        }
    }
    Ok(())
}

fn archive(path: &Path, gather: &mut Gather) -> Result<(), BundleError> {
    let file = fs::File::open(path).map_err(|reason| BundleError::Read { path: path.into(), reason })?;
    let fail = |e: io::Error| BundleError::Archive { path: path.into(), reason: e.to_string() };
    let decoder = zstd::Decoder::new(file).map_err(fail)?;
    // Also bounds what skipped entries may expand to.
    let mut tar = tar::Archive::new(decoder.take(2 * MAX_BUNDLE_BYTES));
    for entry in tar.entries().map_err(fail)? {
        let entry = entry.map_err(fail)?;
        let raw = entry.path_bytes();
        let name = std::str::from_utf8(&raw).map_err(|_| BundleError::Path(String::from_utf8_lossy(&raw).into()))?;
        let name = name.strip_prefix("./").unwrap_or(name).trim_end_matches('/').to_string();
        let kind = entry.header().entry_type();
        if name.is_empty() || name == "." {
            continue;
        }
        if !is_plain(&name) {
            return Err(BundleError::Path(name));
        }
        if kind.is_dir() {
            continue;
        }
        if !kind.is_file() {
            return Err(BundleError::Path(format!("{name} (no regular file)")));
        }
        let size = entry.size();
        gather.add(name.clone(), entry).map_err(fail)??;
        let got = gather.files.get(&name).map_or(0, |f| f.len() as u64);
        if got != size {
            return Err(BundleError::Length { file: name, want: size, got });
        }
    }
    Ok(())
}
