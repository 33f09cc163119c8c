//! An experiment file in the making.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Component, Path, PathBuf};

use runner_template::yaml_text;
use serde_json::Value;

/// The sections of an experiment file, in the order in which people read them.
const SECTIONS: [&str; 16] = [
    "version",
    "name",
    "seed",
    "device",
    "precision",
    "master_weights",
    "model",
    "data",
    "batch",
    "train",
    "optimizer",
    "schedule",
    "parallel",
    "eval",
    "checkpoint",
    "log",
];

/// Values for keys of an experiment file, each with the setting that it comes from, and settings without a counterpart.
#[derive(Debug)]
pub(super) struct ExperimentDraft {
    pub(super) folders: ImportFolders,
    values: BTreeMap<String, (Value, String)>,
    left_out: Vec<(String, String)>,
    pub(super) warnings: Vec<String>,
}

impl ExperimentDraft {
    pub(super) fn new(folders: ImportFolders) -> Self {
        Self { folders, values: BTreeMap::new(), left_out: Vec::new(), warnings: Vec::new() }
    }

    /// Sets the value of the key `path` to a file of the other trainer.
    pub(super) fn set_file(&mut self, path: &str, file: &str, origin: impl Into<String>) {
        self.set(path, self.folders.name(file), origin);
    }

    /// Sets the value of the key `path` to a list of files of the other trainer.
    pub(super) fn set_files(&mut self, path: &str, files: &[&str], origin: impl Into<String>) {
        let names: Vec<String> = files.iter().map(|file| self.folders.name(file)).collect();
        self.set(path, names, origin);
    }

    /// Sets the value of the key `path`. If it has a different value, `value` is left out with the reason.
    pub(super) fn set(&mut self, path: &str, value: impl Into<Value>, origin: impl Into<String>) {
        let (value, origin) = (value.into(), origin.into());
        match self.values.get(path) {
            None => {
                self.values.insert(path.to_owned(), (value, origin));
            }
            Some((known, _)) if *known != value && !origin.is_empty() => {
                let reason = format!("`{path}` is already {}", yaml_text(known));
                self.leave_out(format!("{origin} = {value}"), reason);
            }
            Some(_) => {}
        }
    }

    /// Sets the keys of a whole section.
    pub(super) fn set_section(&mut self, section: &str, values: &Value) {
        for (key, value) in values.as_object().into_iter().flatten().filter(|(_, value)| !value.is_null()) {
            self.set(&format!("{section}.{key}"), value.clone(), "");
        }
    }

    pub(super) fn number(&self, path: &str) -> Option<f64> {
        self.values.get(path)?.0.as_f64()
    }

    pub(super) fn has(&self, path: &str) -> bool {
        self.values.contains_key(path) || self.values.keys().any(|key| key.starts_with(&format!("{path}.")))
    }

    pub(super) fn leave_out(&mut self, setting: impl Into<String>, reason: impl Into<String>) {
        self.left_out.push((setting.into(), reason.into()));
    }

    /// The YAML text under the comment `title`.
    pub(super) fn render(&self, title: &str) -> String {
        let mut lines: Vec<(String, &str)> = Vec::new();
        for section in SECTIONS {
            let mut open: Vec<&str> = Vec::new();
            for (path, (value, origin)) in
                self.values.iter().filter(|(path, _)| path.split('.').next() == Some(section))
            {
                let parts: Vec<&str> = path.split('.').collect();
                let (key, parents) = parts.split_last().unwrap_or((&"", &[]));
                let shared = open.iter().zip(parents).take_while(|(a, b)| a == b).count();
                for (depth, parent) in parents.iter().enumerate().skip(shared) {
                    lines.push((format!("{}{parent}:", "  ".repeat(depth)), ""));
                }
                open = parents.to_vec();
                lines.push((format!("{}{key}: {}", "  ".repeat(parents.len()), yaml_text(value)), origin));
            }
        }
        let width =
            lines.iter().filter(|(_, origin)| !origin.is_empty()).map(|(line, _)| line.len()).max().unwrap_or(0);
        let one_line = |text: &str| text.replace(char::is_control, " ");
        let mut out = format!("# {title} `runner validate` checks this file; `--explain` shows every key.\n");
        for (line, origin) in &lines {
            let _ = match one_line(origin).as_str() {
                "" => writeln!(out, "{line}"),
                origin => writeln!(out, "{line:width$}  # {origin}"),
            };
        }
        if !self.left_out.is_empty() {
            out.push_str("\n# Without a counterpart in this file:\n");
        }
        for (setting, reason) in &self.left_out {
            let _ = match (one_line(setting), one_line(reason).as_str()) {
                (setting, "") => writeln!(out, "#   {setting}"),
                (setting, reason) => writeln!(out, "#   {setting}: {reason}"),
            };
        }
        out
    }
}

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
        let path = self.find(file);
        let folder = without_links(path.parent().unwrap_or(&path));
        let (from, to): (Vec<Component>, Vec<Component>) =
            (self.output.components().collect(), folder.components().collect());
        let shared = from.iter().zip(&to).take_while(|(a, b)| a == b).count();
        let mut relative = PathBuf::new();
        // Whole paths show more clearly which folders share only the root.
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
