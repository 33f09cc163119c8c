//! The size of the text of sources. Text in a compressed column is longer than its file, and files of the hub are estimated until they are
//! here.

use super::batches::Pass;

/// The files of all passes, each with its size, and the size of its text as far as it is known.
pub(super) struct TextSizes {
    passes: Vec<Vec<(u64, Option<u64>)>>,
}

impl TextSizes {
    pub(super) fn new(passes: &[Pass<'_>]) -> Self {
        let sizes = |pass: &Pass<'_>| {
            let source = pass.source;
            let is_here = source.hub.is_none();
            let size = |file| is_here.then(|| source.text_bytes(file, &source.files[file].path)).flatten();
            (0..source.files.len()).map(|file| (source.files[file].size, size(file))).collect()
        };
        Self { passes: passes.iter().map(sizes).collect() }
    }

    /// Takes note of the file `file` of `pass`, number `index`, which is read now.
    pub(super) fn add_file(&mut self, index: usize, pass: &Pass<'_>, file: usize) {
        let Some((_, known @ None)) = self.passes[index].get_mut(file) else { return };
        let path = pass.source.hub.as_ref().and_then(|split| split.downloads.finished_path(file));
        *known = path.and_then(|path| pass.source.text_bytes(file, &path));
    }

    /// The bytes of text of all files. Files that are not here count with the ratio of text to size of those that are.
    pub(super) fn total(&self) -> u64 {
        let files = || self.passes.iter().flatten();
        let (mut size, mut text) = (0_u64, 0_u64);
        for (bytes, known) in files() {
            if let Some(known) = known {
                (size, text) = (size.saturating_add(*bytes), text.saturating_add(*known));
            }
        }
        let ratio = if size > 0 { text as f64 / size as f64 } else { 1.0 };
        files().fold(0, |sum, (size, text)| sum.saturating_add(text.unwrap_or((*size as f64 * ratio) as u64)))
    }
}
