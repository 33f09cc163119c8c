//! The files that a configuration names, as an experiment file elsewhere names them.

use std::path::{Component, Path, PathBuf};

/// The folders from which paths start.
#[derive(Debug)]
pub(super) struct ImportFolders {
    /// The folders from which the other trainer may read files: the current folder, and those above its configuration.
    trainer: Vec<PathBuf>,
    /// The folder of the experiment file.
    output: PathBuf,
}

impl ImportFolders {
    /// `config` is the configuration, and `output` the folder of the experiment file.
    pub(super) fn new(config: &Path, output: &Path) -> Self {
        let config = without_links(config);
        let trainer = std::iter::once(without_links(Path::new("")));
        Self {
            trainer: trainer.chain(config.ancestors().skip(1).take(2).map(Path::to_owned)).collect(),
            output: without_links(output),
        }
    }

    /// The path of the other trainer's `file`: it starts from the first of its folders in which there is such a file, or else from the
    /// current folder.
    pub(super) fn find(&self, file: &str) -> PathBuf {
        let paths = || self.trainer.iter().map(|folder| folder.join(file));
        paths().find(|path| path.exists()).or_else(|| paths().next()).unwrap_or_else(|| PathBuf::from(file))
    }

    /// The text by which the experiment file names `path`: absolute if it was given so, otherwise relative to the experiment's folder.
    pub(super) fn name(&self, file: &str) -> String {
        if Path::new(file).is_absolute() || file.starts_with('~') {
            return file.to_owned();
        }
        // A pattern is looked for by its folder.
        let (folder, name) = file.rsplit_once('/').unwrap_or(("", file));
        let path = if name.contains('*') { self.find(folder).join(name) } else { self.find(file) };
        let folder = without_links(path.parent().unwrap_or(&path));
        let (from, to): (Vec<Component>, Vec<Component>) =
            (self.output.components().collect(), folder.components().collect());
        let shared = from.iter().zip(&to).take_while(|(a, b)| a == b).count();
        let mut relative = PathBuf::new();
        // Folders that share only the root are told apart more clearly by whole paths.
        if shared <= 1 {
            relative.push(&folder);
        } else {
            relative.extend(from[shared..].iter().map(|_| Component::ParentDir).chain(to[shared..].iter().copied()));
        }
        relative.push(path.file_name().unwrap_or_default());
        relative.to_string_lossy().into_owned()
    }
}

/// The absolute `path` without symbolic links, so that `..` leads to the folder above. What does not exist has none.
fn without_links(path: &Path) -> PathBuf {
    let path =
        std::path::absolute(if path.as_os_str().is_empty() { Path::new(".") } else { path }).unwrap_or(path.to_owned());
    let existing = path.ancestors().find_map(|folder| Some((folder, folder.canonicalize().ok()?)));
    let Some((folder, real)) = existing else { return path };
    let mut real = real;
    for part in path.strip_prefix(folder).unwrap_or(&path).components() {
        match part {
            Component::ParentDir => {
                real.pop();
            }
            part => real.push(part),
        }
    }
    real
}
