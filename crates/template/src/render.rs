//! From a template and its variables to a text.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use minijinja::{Error, State, UndefinedBehavior, Value};
use serde_json::{Map, Value as Json};

use super::functions;
use super::guard::{Guards, MAX_FUEL, fits, start_clock};
use super::loader::{Files, environment};
use super::marks::{Lines, Mark, character};
use super::mistakes::Scene;
use super::rewrite::{Rewritten, rewrite};
use super::scan::{GUARD, ONE};
use super::value::printed;
use crate::source::{Place, Source};
use runner_spec::diagnostic::{ConfigError, Diagnostic};
use runner_spec::diagnostic::{list, nearest, short};

/// Deep expressions and nested macros stand on it.
pub(super) const STACK: usize = 64 << 20;

/// Whether a file of this name is a template.
#[must_use]
pub fn is_template(path: &Path) -> bool {
    path.extension().is_some_and(|e| e == "j2")
}

/// What a template is rendered with.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Inputs {
    pub vars: Map<String, Json>,
    /// Those of `vars` that must be used, as they were given one by one.
    pub named: Vec<String>,
    /// What `env()` may find, of the names that a file lists.
    pub environment: BTreeMap<String, String>,
    /// The second folder of includes and macros. Default: `templates` in the current folder, then `templates` beside the
    /// template's own folder.
    pub folder: Option<PathBuf>,
}

/// A file that went into a text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TemplateFile {
    pub path: PathBuf,
    pub text: String,
}

/// A rendered template.
#[derive(Debug, Clone)]
pub struct Rendered {
    pub text: String,
    /// All files that were read: the template, then what it included and imported.
    pub files: Vec<TemplateFile>,
    /// The environment variables that `env()` gave.
    pub env_read: Vec<(String, String)>,
    /// The variables that were given.
    pub vars: Map<String, Json>,
    /// Which line of which file each line is from; `None` if that could not be found out.
    pub lines: Option<Arc<Lines>>,
}

impl Rendered {
    /// The file and line that a line of `text`, from 1, is from.
    #[must_use]
    pub fn origin(&self, line: usize) -> Option<(PathBuf, usize)> {
        let place = self.lines.as_ref()?.line(line)?;
        Some((place.file, place.line))
    }

    /// The text, for messages that name the template's lines beside its own.
    pub fn source(&self, path: &Path) -> Source {
        let mut source = Source::file(path, self.text.clone());
        source.label = format!("{} (rendered)", path.display());
        source.lines.clone_from(&self.lines);
        source
    }
}

/// Renders `text`, the template at `path`.
///
/// # Errors
/// A mistake in it or in a file that it includes, at its line and column; a variable that is not used.
pub fn render(text: &str, path: &Path, inputs: &Inputs) -> Result<Rendered, ConfigError> {
    // Not on this thread: an expression may nest deeper than its stack is.
    let work = || whole(text, path, inputs).map_err(ConfigError::new);
    let internal = |message: String| {
        ConfigError::new(vec![Source::file(path, String::new()).diagnostic_whole(message, String::new())])
    };
    thread::scope(|scope| {
        let thread = thread::Builder::new().name("template".to_owned()).stack_size(STACK).spawn_scoped(scope, work);
        match thread.map(thread::ScopedJoinHandle::join) {
            Ok(Ok(result)) => result,
            Ok(Err(cause)) => std::panic::resume_unwind(cause),
            Err(e) => Err(internal(format!("no thread to render the template in: {e}"))),
        }
    })
}

fn whole(text: &str, path: &Path, inputs: &Inputs) -> Result<Rendered, Vec<Diagnostic>> {
    let one = |mistake: Box<Diagnostic>| vec![*mistake];
    let text = text.strip_prefix('\u{FEFF}').unwrap_or(text);
    start_clock();
    let own = path.parent().map_or_else(PathBuf::new, Path::to_owned);
    // From wherever the command is called, a project's templates/ lies beside the folder of its experiments.
    let shared = inputs
        .folder
        .clone()
        .map_or_else(|| vec![PathBuf::from("templates"), own.join("../templates")], |folder| vec![folder]);
    let folders = std::iter::once(own).chain(shared).collect();
    let files = Arc::new(Files::new(folders, inputs.environment.clone()));
    let name = path.file_name().map_or_else(|| path.display().to_string(), |n| n.to_string_lossy().into_owned());
    files.add(&name, path, text.to_owned()).map_err(one)?;
    let main = Source::file(path, text.to_owned());

    let given: Vec<String> = inputs.vars.keys().cloned().collect();
    let mut pass = Pass::new(&files, false);
    let rendered = pass.run(&name, &inputs.vars).map_err(|error| {
        let (guards, rewritten) = (&pass.guards, pass.state.rewritten.lock().unwrap_or_else(PoisonError::into_inner));
        let scene = Scene { files: &files, guards, rewritten: &rewritten, given: &given };
        one(Box::new(scene.diagnostic(&error, &main)))
    })?;
    unused(&files, inputs)?;
    pass = Pass::new(&files, true);
    // Whatever goes wrong with marks went right without them.
    let marked = pass.run(&name, &inputs.vars).ok();
    let table = pass.state.marks.lock().unwrap_or_else(PoisonError::into_inner);
    let lines = marked.and_then(|marked| Lines::new(&rendered, &marked, &table)).map(Arc::new);
    let file = |file: Arc<super::loader::Loaded>| TemplateFile { path: file.path.clone(), text: file.text.clone() };
    Ok(Rendered {
        text: rendered,
        files: files.all().into_iter().map(file).collect(),
        env_read: files.env_read(),
        vars: inputs.vars.clone(),
        lines,
    })
}

/// What one rendering gathers.
#[derive(Debug, Default)]
struct Gathered {
    rewritten: Mutex<BTreeMap<String, (Rewritten, usize)>>,
    marks: Mutex<Vec<Mark>>,
}

/// One rendering.
struct Pass {
    files: Arc<Files>,
    guards: Arc<Guards>,
    state: Arc<Gathered>,
    marked: bool,
}

impl Pass {
    fn new(files: &Arc<Files>, marked: bool) -> Self {
        Self { files: files.clone(), guards: Arc::new(Guards::new()), state: Arc::default(), marked }
    }

    fn run(&self, name: &str, vars: &Map<String, Json>) -> Result<String, Error> {
        let mut env = environment();
        env.set_undefined_behavior(UndefinedBehavior::Strict);
        env.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
        env.set_fuel(Some(MAX_FUEL));
        functions::add(&mut env, &self.files);
        env.add_global(ONE, 1);
        let guards = self.guards.clone();
        env.add_function(GUARD, move |state: &State<'_, '_>, id: usize| guards.pass(state, id));
        let guards = self.guards.clone();
        env.set_formatter(move |out, _, value| {
            fits(std::slice::from_ref(value))?;
            let text = printed(value)?;
            guards.print(text.len())?;
            Ok(out.write_str(&text)?)
        });
        let (files, guards, state, marked) = (self.files.clone(), self.guards.clone(), self.state.clone(), self.marked);
        env.set_loader(move |name| {
            let Some(file) = files.load(name)? else { return Ok(None) };
            let first = guards.add(&file.pieces);
            let mut marks = state.marks.lock().unwrap_or_else(PoisonError::into_inner);
            let mut mark = |range| {
                let c = character(marks.len())?;
                marks.push(Mark { file: file.clone(), range });
                Some(c)
            };
            let mark: Option<&mut dyn FnMut(_) -> _> = if marked { Some(&mut mark) } else { None };
            let rewritten = rewrite(&file.text, &file.pieces, Some(first), mark);
            let text = rewritten.text.clone();
            let mut all = state.rewritten.lock().unwrap_or_else(PoisonError::into_inner);
            all.insert(name.to_owned(), (rewritten, first));
            Ok(Some(text))
        });
        env.get_template(name)?.render(Value::from_serialize(vars))
    }
}

/// # Errors
/// The variables of `inputs.named` that no file uses.
fn unused(files: &Files, inputs: &Inputs) -> Result<(), Vec<Diagnostic>> {
    let own = |name: &&str| !functions::FUNCTIONS.contains(name);
    let all = files.all();
    let mut used: Vec<&str> = all.iter().flat_map(|f| &f.undeclared).map(String::as_str).filter(own).collect();
    used.sort_unstable();
    used.dedup();
    let strangers = inputs.named.iter().filter(|name| !used.contains(&name.as_str()));
    let mistakes: Vec<Diagnostic> = strangers
        .map(|name| {
            let free = used.iter().copied().filter(|u| !inputs.vars.contains_key(*u));
            let help = match nearest(name, free) {
                Some(near) => format!("did you mean `{near}`?"),
                None if used.is_empty() => "it has no variables".to_owned(),
                None => format!("its variables are {}", list(&used, "and")),
            };
            let message = format!("the template has no variable `{}`", short(name));
            given(name, inputs.vars.get(name)).diagnostic(
                Place { line: 1, column: 1, length: name.chars().count() },
                "",
                message,
                help,
            )
        })
        .collect();
    if mistakes.is_empty() { Ok(()) } else { Err(mistakes) }
}

/// `--var NAME=VALUE`, as far as it is still known.
fn given(name: &str, value: Option<&Json>) -> Source {
    let value = value.map(|v| v.as_str().map_or_else(|| v.to_string(), str::to_owned)).unwrap_or_default();
    let text = format!("{name}={}", short(&value));
    Source::var(&text, name.len() + 1)
}

/// What is said where a file that is no template was given variables.
pub fn no_template(path: &Path, inputs: &Inputs) -> Diagnostic {
    let name = inputs.named.first().or_else(|| inputs.vars.keys().next());
    let name = name.map(String::as_str).unwrap_or_default();
    let message = format!("`{}` is not a template, so it has no variable `{}`", path.display(), short(name));
    let help = "templates end in .j2, as exp.yaml.j2; a key of a plain file is overridden with `--set KEY.PATH=VALUE`";
    let source = given(name, inputs.vars.get(name));
    source.diagnostic(Place { line: 1, column: 1, length: name.chars().count().max(1) }, "", message, help.to_owned())
}
