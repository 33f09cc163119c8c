//! An experiment file in the making.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use runner_template::yaml_text;
use serde_json::Value;

/// The sections that a draft may have, in the order in which people read them.
const SECTIONS: &str =
    "version seed device precision model data batch train optimizer schedule parallel eval checkpoint log";

/// Values for keys of an experiment file, each with the setting that it comes from, and settings without a counterpart.
#[derive(Debug)]
pub(super) struct ExperimentDraft {
    /// The folder of the experiment file.
    output: PathBuf,
    values: BTreeMap<String, (Value, String)>,
    left_out: Vec<String>,
    pub(super) warnings: Vec<String>,
}

impl ExperimentDraft {
    pub(super) fn new(output: &Path) -> Self {
        Self { output: output.to_owned(), values: BTreeMap::new(), left_out: Vec::new(), warnings: Vec::new() }
    }

    /// The text by which the experiment names `file` of the other trainer, whose relative paths start from the current folder.
    pub(super) fn file(&self, file: &str) -> String {
        let is_beside = self.output.as_os_str().is_empty() || self.output == Path::new(".");
        let path = if is_beside { None } else { std::path::absolute(file).ok() };
        path.map_or_else(|| file.to_owned(), |path| path.to_string_lossy().into_owned())
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
                self.leave_out(&format!("{origin} = {value}"), &reason);
            }
            Some(_) => {}
        }
    }

    pub(super) fn number(&self, path: &str) -> Option<f64> {
        self.values.get(path)?.0.as_f64()
    }

    pub(super) fn has(&self, path: &str) -> bool {
        self.values.contains_key(path) || self.values.keys().any(|key| key.starts_with(&format!("{path}.")))
    }

    /// Lists a `setting` that the experiment does not have, with the reason.
    pub(super) fn leave_out(&mut self, setting: &str, reason: &str) {
        let gap = if reason.is_empty() { "" } else { ": " };
        self.left_out.push(format!("{setting}{gap}{reason}"));
    }

    /// The YAML text under the comment `title`.
    pub(super) fn render(&self, title: &str) -> String {
        let mut lines: Vec<(String, &str)> = Vec::new();
        for section in SECTIONS.split(' ') {
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
        for setting in &self.left_out {
            let _ = writeln!(out, "#   {}", one_line(setting));
        }
        out
    }
}
