//! Renders a template with variables.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::thread;

use minijinja::{Error, Value};
use serde_json::{Map, Value as Json};

use super::builtins::environment;
use super::functions;
use super::limits::{EXPERIMENT_TEXT, render_within, set_formatter};
use super::line_map::{LineMap, mark_character};
use super::loader::{FileRange, TemplateFile, TemplateFiles, lock};
use super::rewrite::with_marks;
use super::template_error::FailedRendering;
use super::value::printed;
use runner_spec::diagnostic::{ConfigError, Diagnostic, list, nearest, short};
use runner_spec::error::PlainError;
use runner_spec::panics::{CaughtPanic, catch_panic, panic_message};
use runner_threads::threads::explain_start_error;
use runner_yaml::source::{Place, Source, TemplateLines};

/// Bytes of stack for deep expressions and nested macros.
const STACK_BYTES: usize = 256 << 20;

/// Runs `work` on a separate thread, whose stack is deep enough for every template within the limits.
///
/// # Errors
/// If the template engine panics; a failure if the system refuses the thread.
pub(super) fn with_large_stack<T: Send>(work: impl FnOnce() -> T + Send) -> Result<T, PlainError> {
    thread::scope(|scope| {
        let thread = thread::Builder::new().name("template".to_owned()).stack_size(STACK_BYTES);
        let started = thread.spawn_scoped(scope, || catch_panic(work));
        let refused = |error| PlainError::failure(explain_start_error("a thread", &error).to_string());
        let joined = started.map_err(refused)?.join();
        let result = joined.unwrap_or_else(|panic| Err(CaughtPanic(panic_message(&*panic).to_owned())));
        let explain = |panic| format!("the template engine failed on a value of this template: {panic}");
        result.map_err(|panic| PlainError::request(explain(panic)))
    })
}

/// True if a file of this name is a template.
#[must_use]
pub fn is_template(path: &Path) -> bool {
    path.extension().is_some_and(|e| e == "j2")
}

/// The variables, environment and folders that a template is rendered with.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Inputs {
    pub vars: Map<String, Json>,
    /// The names of `vars` that the template must use, because they were given one by one.
    pub named: Vec<String>,
    /// The environment variables that `env()` may find.
    pub environment: BTreeMap<String, String>,
    /// The second folder of includes and macros. Default: `templates` in the current folder, then `templates` beside the
    /// template's own folder.
    pub folder: Option<PathBuf>,
}

/// A rendered template.
#[derive(Debug, Clone)]
pub struct Rendered {
    pub text: String,
    /// All files that were read: the template, then what it included and imported.
    pub files: Vec<Arc<TemplateFile>>,
    /// The environment variables that `env()` gave.
    pub env_read: Vec<(String, String)>,
    /// The variables that were given.
    pub vars: Map<String, Json>,
    /// The line of a template that each line is from; `None` if marks would change the text.
    pub line_map: Option<Arc<LineMap>>,
}

impl Rendered {
    /// The text, for messages that name the template's lines beside its own.
    pub fn source(&self, path: &Path) -> Source {
        let mut source = Source::template(path, self.text.clone());
        source.label = format!("{} (rendered)", path.display());
        source.line_map = self.line_map.clone().map(|lines| lines as Arc<dyn TemplateLines>);
        source
    }
}

/// Renders `text`, the template at `path`.
///
/// # Errors
/// A mistake in it or in a file that it includes, at its line and column; a variable that is not used.
pub fn render(text: &str, path: &Path, inputs: &Inputs) -> Result<Rendered, ConfigError> {
    let rendered = with_large_stack(|| render_files(text, path, inputs)).unwrap_or_else(|PlainError { kind, text }| {
        Err(vec![Diagnostic { kind, ..Source::file(path, String::new()).diagnostic_whole(text, String::new()) }])
    });
    rendered.map_err(ConfigError::new)
}

fn render_files(text: &str, path: &Path, inputs: &Inputs) -> Result<Rendered, Vec<Diagnostic>> {
    let own = path.parent().map_or_else(PathBuf::new, Path::to_owned);
    // From wherever the command is called, a project's templates/ lies beside the folder of its experiments.
    let shared = inputs
        .folder
        .clone()
        .map_or_else(|| vec![PathBuf::from("templates"), own.join("../templates")], |folder| vec![folder]);
    let folders = std::iter::once(own).chain(shared).collect();
    let files = Arc::new(TemplateFiles::new(folders, inputs.environment.clone()));
    let name = path.file_name().map_or_else(|| path.display().to_string(), |n| n.to_string_lossy().into_owned());
    let main = &*files.add(&name, path, text.to_owned()).map_err(|mistake| vec![*mistake])?;

    let rendered = render_pass(&files, &name, &inputs.vars, None).map_err(|error| {
        let failed = FailedRendering { files: &files, main, given: inputs.vars.keys().cloned().collect() };
        vec![failed.diagnostic(&error)]
    })?;
    check_variables_are_used(&files, inputs)?;
    let marks = Arc::new(Mutex::new(Vec::new()));
    // The text is there. If the marks lead to an error, only the line map is missing.
    let marked = render_pass(&files, &name, &inputs.vars, Some(&marks)).ok();
    let line_map = marked.and_then(|marked| LineMap::new(&rendered, &marked, &lock(&marks))).map(Arc::new);
    let (files, env_read) = (files.all(), files.env_read());
    Ok(Rendered { text: rendered, files, env_read, vars: inputs.vars.clone(), line_map })
}

/// Renders the file `name` once. With `marks`, the text has a mark before each thing that is printed.
fn render_pass(
    files: &Arc<TemplateFiles>,
    name: &str,
    vars: &Map<String, Json>,
    marks: Option<&Arc<Mutex<Vec<FileRange>>>>,
) -> Result<String, Error> {
    let mut env = environment();
    functions::add(&mut env, files);
    set_formatter(&mut env, printed);
    let (files, marks) = (files.clone(), marks.cloned());
    env.set_loader(move |name| {
        let Some(file) = files.load(name)? else { return Ok(None) };
        let Some(marks) = &marks else { return Ok(Some(file.text.clone())) };
        Ok(Some(with_marks(&file.text, &file.tags, |range| {
            let mut marks = lock(marks);
            let character = mark_character(marks.len())?;
            marks.push(FileRange { file: file.clone(), range });
            Some(character)
        })))
    });
    render_within(&env.get_template(name)?, Value::from_serialize(vars), EXPERIMENT_TEXT)
}

/// Fails if no file uses a variable of `inputs.named`.
fn check_variables_are_used(files: &TemplateFiles, inputs: &Inputs) -> Result<(), Vec<Diagnostic>> {
    let all = files.all();
    let used: BTreeSet<&str> = all.iter().flat_map(|f| &f.undeclared).map(String::as_str).collect();
    let used = Vec::from_iter(used);
    let unknown = inputs.named.iter().filter(|name| !used.contains(&name.as_str()));
    let mistake = |name: &String| {
        let free = used.iter().copied().filter(|u| !inputs.vars.contains_key(*u));
        let help = match nearest(name, free) {
            Some(near) => format!("did you mean `{near}`?"),
            None if used.is_empty() => "it has no variables".to_owned(),
            None => format!("its variables are {}", list(&used, "and")),
        };
        flag_diagnostic(name, inputs, format!("the template has no variable `{}`", short(name)), help)
    };
    let mistakes: Vec<Diagnostic> = unknown.map(mistake).collect();
    if mistakes.is_empty() { Ok(()) } else { Err(mistakes) }
}

/// The diagnostic for the name of the flag `--var NAME=VALUE` that gave a variable.
fn flag_diagnostic(name: &str, inputs: &Inputs, message: String, help: String) -> Diagnostic {
    let value = inputs.vars.get(name).map(|v| v.as_str().map_or_else(|| v.to_string(), str::to_owned));
    let text = format!("{name}={}", value.map_or_else(String::new, |value| short(&value)));
    let place = Place { line: 1, column: 1, length: name.chars().count().max(1) };
    Source::flag("--var", &text, name.len() + 1).diagnostic(place, "", message, help)
}

/// The diagnostic for variables that were given for a file that is not a template.
pub fn not_a_template(path: &Path, inputs: &Inputs) -> Diagnostic {
    let name = inputs.named.first().or_else(|| inputs.vars.keys().next()).map_or("", String::as_str);
    let message = format!("`{}` is not a template, so it has no variable `{}`", path.display(), short(name));
    let help = "the name of a template ends in .j2, as in exp.yaml.j2; use `--set KEY.PATH=VALUE` to override a key of a plain file";
    flag_diagnostic(name, inputs, message, help.to_owned())
}
