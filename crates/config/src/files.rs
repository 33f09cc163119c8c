//! The files of an experiment. Each is a layer: the files that a file extends are below it, and those that flags name above it.

use std::path::{Component, Path, PathBuf};

use crate::check::check_key_path;
use runner_spec::diagnostic::{ConfigError, Diagnostic, nearest, short};
use runner_yaml::source::{Place, Source, is_stream, read};
use runner_yaml::tree::{self, Entry, Node, ParsedYaml, Yaml};

/// The key of a file that names the files below it.
pub(crate) const EXTENDS: &str = "extends";

/// The most files of one experiment: several files may extend the same two, and so on.
const MAX_FILES: usize = 100;

const HELP: &str = "name a file, as in `extends: base.yaml`, or several, the lowest first: `extends: [base.yaml, {model: small.yaml}]`; paths are \
                    relative to the file's folder";

/// A file whose content is the value of a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LayerFile {
    /// The path of the key, such as `model`. Empty: the file is a whole experiment, or a part of one with its keys.
    pub key: String,
    pub path: PathBuf,
}

/// A file of an experiment that was read.
#[derive(Debug, Clone)]
pub struct ReadFile {
    pub file: LayerFile,
    /// The text of the file; for a template, the rendered text.
    pub text: String,
    /// True if it is over the experiment file: a flag names it, or such a file extends it.
    pub is_above: bool,
    pub(crate) source: Source,
    /// What the file gives the experiment: its content without `extends`, as the value of its key. `None` if it is empty.
    pub(crate) tree: Option<Node>,
    /// The folder that paths in the file start from, absolute.
    pub(crate) folder: PathBuf,
}

/// The files of an experiment, the lowest layer first, and the mistakes in them.
#[derive(Debug, Clone, Default)]
pub(crate) struct ReadFiles {
    pub(crate) all: Vec<ReadFile>,
    pub(crate) mistakes: Vec<Diagnostic>,
    /// The files that are being read, each of which extends the next, by their canonical paths.
    chain: Vec<PathBuf>,
    /// True if further files are over the experiment file.
    are_above: bool,
}

impl ReadFiles {
    /// Adds the file at `path`, whose content is `parsed`, and below it the files that it extends. The file itself becomes the last.
    ///
    /// # Errors
    /// If the folder of the file cannot be found, or is not UTF-8.
    pub(crate) fn add(&mut self, parsed: ParsedYaml, file: LayerFile) -> Result<(), ConfigError> {
        let ParsedYaml { source, root, mistakes } = parsed;
        self.mistakes.extend(mistakes);
        let folder = base_folder(&file.path, &source)?;
        let (extended, root) = match root {
            Some(root) => split_extends(&root),
            None => (None, None),
        };
        self.chain.push(canonical(&file.path));
        if let Some(entry) = extended {
            let named = self.read_names(&entry, &source, &file);
            for (place, extended) in named {
                self.add_extended(place, &source, extended)?;
            }
        }
        self.chain.pop();
        let tree = root.map(|root| at_key(&file.key, root));
        let is_above = self.are_above;
        self.all.push(ReadFile { file, text: source.text.clone(), is_above, source, tree, folder });
        Ok(())
    }

    /// Adds the file that a flag names.
    ///
    /// # Errors
    /// If it cannot be read.
    pub(crate) fn add_flag(&mut self, file: &LayerFile) -> Result<(), ConfigError> {
        if runner_template::is_template(&file.path) {
            let message = "only the experiment itself may be a template".to_owned();
            let help = "`runner render TEMPLATE` prints what a template makes".to_owned();
            return Err(Source::file(&file.path, String::new()).diagnostic_whole(message, help).into());
        }
        self.are_above = true;
        let text = read(&file.path, "name a YAML file with keys of an experiment")?;
        self.add(tree::parse(Source::file(&file.path, text)), file.clone())
    }

    /// Adds the file that `source` names at `place`.
    fn add_extended(&mut self, place: Place, source: &Source, file: LayerFile) -> Result<(), ConfigError> {
        let name = short(&file.path.display().to_string());
        let (message, help) = if runner_template::is_template(&file.path) {
            let help = "extend a plain file, or make this file a template, too, and use `{% include %}`";
            (format!("`{name}` is a template, which cannot be extended"), help.to_owned())
        } else if self.chain.contains(&canonical(&file.path)) {
            (format!("`{name}` extends itself: {}", self.describe_chain(&file.path)), String::new())
        } else if self.all.len() + self.chain.len() >= MAX_FILES {
            (format!("the experiment has more than {MAX_FILES} files"), String::new())
        } else {
            match read(&file.path, "") {
                Ok(text) => return self.add(tree::parse(Source::file(&file.path, text)), file),
                // A file that was read and is not text has its own place.
                Err(error) if error.diagnostics.iter().any(|mistake| mistake.line > 0) => {
                    self.mistakes.extend(error.diagnostics);
                    return Ok(());
                }
                Err(error) => {
                    let why = error.diagnostics.first().map(|mistake| mistake.message.clone()).unwrap_or_default();
                    let near = nearest_file_name(&file.path);
                    let near = near.map(|near| format!("did you mean `{}`?", file.path.with_file_name(near).display()));
                    let chain = (self.chain.len() > 1).then(|| self.describe_chain(&file.path));
                    let help: Vec<String> = near.into_iter().chain(chain).collect();
                    (format!("cannot extend `{name}`: {why}"), help.join("\n"))
                }
            }
        };
        self.mistakes.push(source.diagnostic(place, EXTENDS, message, help));
        Ok(())
    }

    /// `a.yaml extends b.yaml, which extends c.yaml`, for the files that are being read and `last`.
    fn describe_chain(&self, last: &Path) -> String {
        let name = |path: &Path| path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned();
        let names: Vec<String> = self.chain.iter().map(|path| name(path)).chain([name(last)]).collect();
        format!("{} extends {}", names[0], names[1..].join(", which extends "))
    }

    /// The files that the value of `entry` names, with their places. `file` has it.
    fn read_names(&mut self, entry: &Entry, source: &Source, file: &LayerFile) -> Vec<(Place, LayerFile)> {
        let items: &[Node] = match &entry.value.value {
            Yaml::Seq(items) => items,
            _ if entry.value.is_null() => &[],
            _ => std::slice::from_ref(&entry.value),
        };
        let mut named = Vec::new();
        for item in items {
            let pairs: Vec<(Place, &str, &Node)> = match &item.value {
                Yaml::Map(entries) => entries.iter().map(|e| (e.place, e.key.as_str(), &e.value)).collect(),
                _ => vec![(item.place, "", item)],
            };
            for (place, key, value) in pairs {
                match Self::read_name(key, value, file) {
                    Ok(extended) => named.push((value.place, extended)),
                    Err((message, help)) => {
                        let place = if matches!(value.value, Yaml::Scalar { .. }) { place } else { item.place };
                        self.mistakes.push(source.diagnostic(place, EXTENDS, message, help));
                    }
                }
            }
        }
        named
    }

    /// The file that `value` names for `key`; the message and help of a mistake.
    fn read_name(key: &str, value: &Node, file: &LayerFile) -> Result<LayerFile, (String, String)> {
        let Yaml::Scalar { text, .. } = &value.value else {
            return Err((format!("`{EXTENDS}` must name files, got {}", value.describe()), HELP.to_owned()));
        };
        if value.is_null() || text.is_empty() {
            return Err((format!("`{EXTENDS}` names no file"), HELP.to_owned()));
        }
        let key = [&*file.key, key].into_iter().filter(|key| !key.is_empty()).collect::<Vec<_>>().join(".");
        if !key.is_empty() {
            check_key_path(&key).map_err(|mistake| (mistake.message, mistake.help))?;
        }
        let folder = if is_stream(&file.path) { None } else { file.path.parent() };
        Ok(LayerFile { key, path: shortened(folder.unwrap_or(Path::new("")).join(&**text)) })
    }
}

/// The experiment's value of `key`, given by the content `value` of a file.
fn at_key(key: &str, value: Node) -> Node {
    let place = Place { length: 1, ..value.place };
    key.rsplit('.').filter(|key| !key.is_empty()).fold(value, |node, key| Node::wrap(key.to_owned(), place, node))
}

/// The entry `extends` of a file's content, and the content without it.
fn split_extends(root: &Node) -> (Option<Entry>, Option<Node>) {
    let entry = match &root.value {
        Yaml::Map(entries) => entries.iter().find(|entry| entry.key == EXTENDS).cloned(),
        _ => None,
    };
    let rest = if entry.is_some() { root.without(EXTENDS) } else { root.clone() };
    let is_given = entry.is_some() || !rest.is_null();
    (entry, is_given.then_some(rest))
}

/// `path` without `folder/..`, if that names the same file.
fn shortened(path: PathBuf) -> PathBuf {
    let mut short = PathBuf::new();
    for part in path.components() {
        let is_folder = matches!(short.components().next_back(), Some(Component::Normal(_)));
        match part {
            Component::ParentDir if is_folder => drop(short.pop()),
            part => short.push(part),
        }
    }
    let folder = |path: &Path| canonical(&Path::new(".").join(path.parent().unwrap_or(path)));
    if folder(&short) == folder(&path) { short } else { path }
}

fn canonical(path: &Path) -> PathBuf {
    path.canonicalize().unwrap_or_else(|_| path.to_owned())
}

/// The name of a file beside `path`, which is missing, that is probably meant.
pub(crate) fn nearest_file_name(path: &Path) -> Option<String> {
    /// More names of a folder are not compared.
    const MAX_NAMES: usize = 2000;
    let folder = path.parent().filter(|folder| *folder != Path::new("")).unwrap_or(Path::new("."));
    let entries = std::fs::read_dir(folder).ok()?.take(MAX_NAMES);
    let mut names: Vec<String> = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok()).collect();
    names.sort();
    nearest(path.file_name()?.to_str()?, names.iter().map(String::as_str)).map(str::to_owned)
}

/// The folder that paths in the file `path` start from, absolute.
fn base_folder(path: &Path, source: &Source) -> Result<PathBuf, ConfigError> {
    let wrong = |message: String| ConfigError::from(source.diagnostic_whole(message, String::new()));
    // A stream is in no folder.
    let path = if is_stream(path) { Path::new("") } else { path };
    let folder = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let folder = std::path::absolute(folder).map_err(|e| wrong(format!("cannot find the folder of the file: {e}")))?;
    if folder.to_str().is_none() {
        return Err(wrong("the path of the file's folder must be UTF-8, because a run records it".to_owned()));
    }
    Ok(folder)
}
