//! The files that a sweep's points were made from, by their content.

use std::collections::BTreeMap;
use std::path::Path;

use crate::record::SourceHash;
use crate::record::sweep_dir::absolute_path;
use runner_config::Loaded;
use runner_files::{read_regular, without_byte_order_mark};
use runner_spec::error::{CommandError, Result};

/// The content hash of a source, without a byte order mark.
fn hash_source(content: &[u8]) -> String {
    blake3::hash(without_byte_order_mark(content)).to_hex().to_string()
}

/// True if the file exists and has the recorded content.
pub(super) fn is_unchanged(source: &SourceHash) -> bool {
    read_regular(&source.path).is_ok_and(|content| hash_source(&content) == source.blake3)
}

/// The content hashes of the files that the points were made from.
///
/// # Errors
/// If a file was not the same for all points.
pub(super) fn hash_sources<'a>(loaded: impl Iterator<Item = &'a Loaded>) -> Result<Vec<SourceHash>> {
    let mut files: BTreeMap<&Path, &str> = BTreeMap::new();
    for loaded in loaded {
        let own = loaded.template.is_none().then_some((loaded.path.as_path(), loaded.text.as_str()));
        let read = loaded.template.iter().flat_map(|t| &t.files).map(|f| (f.path.as_path(), f.text.as_str()));
        let others = loaded.other_files.iter().map(|other| (other.file.path.as_path(), other.text.as_str()));
        for (path, text) in read.chain(own).chain(others) {
            if *files.entry(path).or_insert(text) != text {
                let message = format!("{} changed while it was being read; run the same command again", path.display());
                return Err(CommandError::request(message));
            }
        }
    }
    let hash =
        |(path, text): (&Path, &str)| SourceHash { path: absolute_path(path), blake3: hash_source(text.as_bytes()) };
    let mut sources: Vec<SourceHash> = files.into_iter().map(hash).collect();
    sources.sort_by(|a, b| a.path.cmp(&b.path));
    sources.dedup();
    Ok(sources)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use runner_config::LoadOptions;

    #[test]
    fn a_file_is_the_same_for_all_points() {
        let dir = tempfile::tempdir().unwrap();
        let (template, part) = (dir.path().join("a.yaml.j2"), dir.path().join("part.yaml"));
        let text = "model: {preset: gpt2-micro}\ndata: {tokenizer: {bytes: {}}, train: {builtin: {corpus: stories}}}\n";
        fs::write(&template, "{% include 'part.yaml' %}\n").unwrap();
        let load = |more: &str| {
            fs::write(&part, format!("{text}{more}")).unwrap();
            runner_config::load(&template, &LoadOptions::default()).unwrap()
        };
        let (one, same, other) = (load(""), load(""), load("\n# other\n"));
        let sources = hash_sources([&one, &same].into_iter()).unwrap();
        assert_eq!(sources.len(), 2);
        assert!(!sources.iter().all(is_unchanged), "the part is a different one");
        load("");
        assert!(sources.iter().all(is_unchanged), "as it is on disk");
        fs::remove_file(&part).unwrap();
        assert_eq!(sources.iter().filter(|source| is_unchanged(source)).count(), 1);
        let error = hash_sources([&one, &other].into_iter()).unwrap_err().to_string();
        assert!(error.contains("part.yaml changed while"), "{error}");
    }
}
