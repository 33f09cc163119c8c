//! The `data` section: files that must be there, rows that must fit the model.

use std::path::{Path, PathBuf};

use crate::files::nearest_file_name;
use crate::raw::data::{RawData, RawLayout};
use crate::resolve::resolver::Resolver;
use runner_files::special_file_kind;
use runner_spec::diagnostic::{list, nearest, short};
use runner_spec::experiment::{
    Data, HubModel, Layout, Model, Separator, Source, Tokenizer, Validation, advice_for_file,
};

/// The last part of the training source that is held out unless the file says otherwise.
const HELD_OUT: f64 = 0.1;

impl Resolver<'_> {
    /// Resolves the section for `model`, which is `None` after mistakes in it.
    pub(crate) fn data(&mut self, raw: RawData, model: Option<&Model>) -> Option<Data> {
        let context = model.map(|model| model.context_length);
        self.check_special_tokens(&raw);
        let is_given = self.given("data.tokenizer");
        let given = is_given.then(|| self.tokenizer(raw.tokenizer.clone()));
        let layout = self.layout(raw.layout, context);
        let has_tokens = raw.train.as_ref().is_some_and(Source::is_tokens);
        let train = raw.train.and_then(|mut source| self.source(&mut source, "data.train").map(|()| source));
        let validation = self.held_out(raw.validation, has_tokens);
        let separate = validation.as_ref().ok().and_then(|found| found.as_ref()?.source());
        let tokenizer =
            given.unwrap_or_else(|| self.tokenizer_of_sources(raw.tokenizer, train.as_ref(), separate, model));
        let columns = matches!(layout, Some(Layout::Columns { .. }));
        if has_tokens && layout.as_ref().and_then(Layout::separator) == Some(Separator::None) {
            let key = if columns { "data.layout.columns.separator" } else { "data.layout.packed.separator" };
            self.error(
                &[key, "data.train"],
                format!("`{key}: none` has no effect on token shards, which contain what separates their documents"),
                "delete `separator`, or write shards without separators",
            );
        }
        if columns && raw.shuffle == Some(true) {
            self.error(
                &["data.shuffle", "data.layout.columns"],
                "`data.shuffle` must be false with the layout `columns`, whose rows follow one another",
                "delete `shuffle`, or use the layout `packed`",
            );
        }
        if raw.shuffle.is_none() && columns {
            self.note("data.shuffle", "default of columns".into());
        }
        Some(Data {
            tokenizer: tokenizer?,
            train: train?,
            validation: validation.ok()?,
            layout: layout?,
            shuffle: raw.shuffle.unwrap_or(!columns),
            drop_last: raw.drop_last,
            epoch_rows: raw.epoch_rows,
            position: raw.position,
        })
    }

    /// Resolves the held-out data. `has_tokens` is true if the training source is token shards.
    ///
    /// # Errors
    /// After a mistake in it.
    fn held_out(&mut self, given: Option<Validation>, has_tokens: bool) -> Result<Option<Validation>, ()> {
        match given {
            Some(given) => self.validation(given).map(Some).ok_or(()),
            None if has_tokens || self.given_as_null("data.validation") => Ok(None),
            None => Ok(Some(Validation::Fraction(HELD_OUT))),
        }
    }

    /// Columns are as many as a batch has sequences, `sequences`.
    pub(crate) fn columns(&mut self, layout: &mut Layout, sequences: usize) {
        let Layout::Columns { count, .. } = layout else { return };
        if *count == 0 {
            self.note("data.layout.columns.count", "batch.sequences".into());
            *count = sequences;
        } else if *count != sequences {
            self.error(
                &["data.layout.columns.count", "batch.sequences"],
                format!("`data.layout.columns.count` must be {sequences}, the sequences of a batch, got {count}"),
                format!("delete `count`, or set it to {sequences}: a batch takes one row of every column"),
            );
        }
    }

    fn tokenizer(&mut self, mut tokenizer: Tokenizer) -> Option<Tokenizer> {
        match &mut tokenizer {
            Tokenizer::Gpt2 { vocab, merges } => {
                let vocab = self.file("data.tokenizer.gpt2.vocab", vocab);
                self.file("data.tokenizer.gpt2.merges", merges).and(vocab)?;
            }
            Tokenizer::File(path) => {
                self.file("data.tokenizer.file", path)?;
            }
            Tokenizer::Chars {} | Tokenizer::Bytes {} | Tokenizer::Ids {} | Tokenizer::Words { .. } => {}
            Tokenizer::Bpe { vocab_size, special_tokens } => {
                let least = 256 + special_tokens.len();
                if *vocab_size < least {
                    return self.refuse(
                        &["data.tokenizer.bpe.vocab_size"],
                        format!(
                            "`vocab_size` must be at least {least}, for 256 bytes and {} special tokens, got {vocab_size}",
                            special_tokens.len()
                        ),
                        "common sizes are 1024 to 50257",
                    );
                }
            }
            Tokenizer::Hub(HubModel { name, revision }) => {
                if let Some(source) = self.layers.origin("data.tokenizer.hub", false) {
                    self.note("data.tokenizer.hub.name", source);
                }
                let fits = self.hub_name("data.tokenizer.hub.name", name)
                    & self.hub_revision("data.tokenizer.hub.revision", revision);
                fits.then_some(())?;
            }
        }
        Some(tokenizer)
    }

    /// Reports tokens of a padded layout that are not special tokens of the tokenizer, if the tokenizer is trained.
    fn check_special_tokens(&mut self, raw: &RawData) {
        let RawLayout::Padded { bos, eos, pad, .. } = &raw.layout else { return };
        let (Tokenizer::Bpe { special_tokens, .. } | Tokenizer::Words { special_tokens, .. }) = &raw.tokenizer else {
            return;
        };
        for (key, token) in [("bos", bos), ("eos", eos), ("pad", pad)] {
            if special_tokens.contains(token) || token == "<|endoftext|>" {
                continue;
            }
            let names = special_tokens.iter().map(String::as_str);
            let help = match nearest(token, names) {
                Some(near) => format!("did you mean `{near}`?"),
                None if special_tokens.is_empty() => {
                    format!("add `special_tokens: [\"{}\"]` to the tokenizer", short(token))
                }
                None => format!("its special tokens are {}; add it there", list(special_tokens, "and")),
            };
            let message = format!("`{key}` must be one of the tokenizer's special tokens, got `{}`", short(token));
            self.error(&[&format!("data.layout.padded.{key}")], message, help);
        }
    }

    fn layout(&mut self, raw: RawLayout, context: Option<usize>) -> Option<Layout> {
        let (key, given) = match &raw {
            RawLayout::Packed { length, .. } => ("data.layout.packed.length", *length),
            RawLayout::Columns { length, .. } => ("data.layout.columns.length", *length),
            RawLayout::Padded { length, .. } => ("data.layout.padded.length", *length),
        };
        if given.is_none() {
            self.note(key, "default (model.context_length)".into());
        }
        if let (Some(length), Some(context)) = (given, context)
            && length > context
        {
            return self.refuse(
                &[key, "model.context_length"],
                format!("rows of {length} tokens are longer than `model.context_length`, {context}"),
                format!("make `length` at most {context}, or `model.context_length` at least {length}"),
            );
        }
        let length = given.or(context)?;
        Some(match raw {
            RawLayout::Packed { separator, .. } => Layout::Packed { length, separator },
            // `columns` replaces 0 by the number of sequences once the batch is known.
            RawLayout::Columns { count, eval_count, separator, .. } => {
                Layout::Columns { length, count: count.unwrap_or(0), eval_count, separator }
            }
            RawLayout::Padded { bos, eos, pad, mask, .. } => Layout::Padded { length, bos, eos, pad, mask },
        })
    }

    /// Resolves the list `files` of the section `key`.
    pub(crate) fn files(&mut self, key: &str, files: &mut [PathBuf]) -> Option<()> {
        let mut all = Some(());
        for (i, file) in files.iter_mut().enumerate() {
            match self.path(&format!("{key}.files.{i}"), file, true) {
                Some(path) => *file = path,
                None => all = None,
            }
        }
        all
    }

    /// Resolves the path of one file, which must be there.
    pub(crate) fn file(&mut self, key: &str, file: &mut PathBuf) -> Option<()> {
        *file = self.path(key, file, false)?;
        Some(())
    }

    /// `path` joined to the folder of the experiment. As a pattern, the folder's own special characters are escaped.
    fn path(&mut self, key: &str, path: &Path, patterns: bool) -> Option<PathBuf> {
        let text = &*path.to_string_lossy();
        if text.is_empty() {
            return self.refuse(&[key], format!("`{key}` is empty"), "name a file");
        }
        let base = self.folder_of(key).to_owned();
        let path = base.join(text);
        if let Some(kind) = special_file_kind(&path) {
            let help = if patterns && path.is_dir() {
                format!("name its files, for example `{}/*`", text.trim_end_matches('/'))
            } else {
                "name a file".into()
            };
            return self.refuse(&[key], format!("`{}` is {kind}", short(text)), help);
        }
        // A file called like a pattern is that file; what reads `files` expands them, so it is written as a pattern too.
        if path.exists() {
            let text = path.to_string_lossy();
            return Some(if patterns { glob::Pattern::escape(&text).into() } else { path });
        }
        if self.options.allows_absent_initial_inputs && key.starts_with("data.tokenizer") {
            return Some(path);
        }
        if !patterns || !text.contains(['*', '?', '[']) {
            let mut help = self.missing_help(key, &path, text);
            if let Some(advice) = advice_for_file(key) {
                help = format!("{help}; {advice}; `builtin: stories` needs no file");
            }
            return self.absent(key, path, format!("there is no file `{}`", short(text)), help);
        }
        let pattern = if Path::new(text).is_absolute() {
            text.to_owned()
        } else {
            format!("{}/{text}", glob::Pattern::escape(&base.to_string_lossy()))
        };
        match runner_files::matching_paths(&pattern) {
            Ok(mut matches) => {
                if matches.any(|m| m.is_ok_and(|p| p.is_file())) {
                    return Some(PathBuf::from(pattern));
                }
                let help = format!("paths are relative to the file's folder, {}", base.display());
                self.absent(key, pattern.into(), format!("no file matches `{}`", short(text)), help)
            }
            Err(e) => self.refuse(
                &[key],
                format!("invalid pattern `{}`: {}", short(text), e.msg),
                "`*` matches any characters, `?` any one character",
            ),
        }
    }

    /// Reports that there is no file at `path`, which `key` names. Returns the path if the file may be missing.
    fn absent(&mut self, key: &str, path: PathBuf, message: String, help: String) -> Option<PathBuf> {
        if !self.options.allows_absent_files {
            return self.refuse(&[key], message, help);
        }
        let absent = self.diagnose(&[key], message, help);
        self.mistakes.absent_files.extend(absent);
        Some(path)
    }

    /// The name that was probably meant, or else where names are looked up.
    fn missing_help(&self, key: &str, path: &Path, text: &str) -> String {
        if text.starts_with("~/") {
            return "`~` is not expanded in a file; write the full path".to_owned();
        }
        if text.contains(char::is_control) {
            return "in double quotes `\\t` is a tab and `\\n` a line break; use single quotes, or `/` instead of `\\`"
                .to_owned();
        }
        if text.contains("://") {
            return "only local files are read: download it first, or use `hub: owner/name` for a dataset of the Hugging Face hub"
                .to_owned();
        }
        if let Ok(target) = path.read_link() {
            return format!("it is a link to {}, which does not exist", target.display());
        }
        let relative = format!("paths are relative to the file's folder, {}", self.folder_of(key).display());
        if let Some(folder) = path.parent().filter(|folder| !folder.is_dir()) {
            return format!("there is no folder {}; {relative}", folder.display());
        }
        match (nearest_file_name(path), Path::new(text).parent()) {
            (Some(near), Some(folder)) => format!("did you mean `{}`?", folder.join(near).display()),
            _ => relative,
        }
    }
}
