//! Token shards without a tokenizer: the model's vocabulary is enough to train on them, and nothing can be made of text.

use std::path::PathBuf;

use crate::resolve::resolver::Resolver;
use std::borrow::Cow;

use runner_spec::experiment::task_key;
use runner_spec::experiment::{Data, Eval, Model, Source, Tokenizer};

impl Resolver<'_> {
    /// The tokenizer of a file that names none: `default` for text. Token shards do not record which tokenizer made them, so their tokens
    /// are ids; then the vocabulary must be that of the model.
    pub(crate) fn tokenizer_of_sources(
        &mut self,
        default: Tokenizer,
        train: Option<&Source>,
        separate: Option<&Source>,
        model: Option<&Model>,
    ) -> Option<Tokenizer> {
        let shards = |source: Option<&Source>| source.filter(|source| source.is_tokens()).map(|s| s.files().to_vec());
        let (key, files) = match (shards(train), shards(separate)) {
            (Some(files), _) => ("data.train.tokens", files),
            (None, Some(files)) => ("data.validation.tokens", files),
            (None, None) => return Some(default),
        };
        if key == "data.train.tokens" && model?.vocab_size.is_some() {
            self.note("data.tokenizer.ids", "default of token shards".into());
            return Some(Tokenizer::Ids {});
        }
        let ids = if key == "data.train.tokens" {
            ".\nOr set `model.vocab_size`: samples are then ids, and tasks are not available"
        } else {
            ""
        };
        let help = format!("{}{ids}", self.advice_on_tokenizer(key, &files));
        self.refuse(&[key], format!("`{key}` does not record which tokenizer made its tokens"), help)
    }

    /// Advice on the tokenizer of the token shards `files`, from the files beside them.
    fn advice_on_tokenizer(&self, key: &str, files: &[PathBuf]) -> String {
        let beside = |name: &str| files.iter().map(|file| file.with_file_name(name)).find(|path| path.is_file());
        if let Some(tokenizer) = beside("tokenizer.json") {
            let tokenizer = tokenizer.strip_prefix(self.folder_of(key)).unwrap_or(&tokenizer).display().to_string();
            format!("use the tokenizer.json beside them: `tokenizer: {{file: {tokenizer}}}`")
        } else if beside("meta.pkl").is_some() {
            "there is a meta.pkl of nanoGPT beside them, so they are probably characters: train on their text, such as input.txt, with \
             `tokenizer: {chars: {}}`"
                .to_owned()
        } else {
            "name it in `data`, such as `tokenizer: {hub: gpt2}`, `tokenizer: {file: tokenizer.json}` or `tokenizer: {bytes: {}}`"
                .to_owned()
        }
    }

    /// Reports what needs a tokenizer of text, if the tokens are ids alone, and ids without a vocabulary.
    pub(crate) fn check_token_ids(&mut self, data: &Data, eval: &Eval, model: &Model) {
        if data.tokenizer != (Tokenizer::Ids {}) {
            return;
        }
        if model.vocab_size.is_none() {
            self.error(
                &["data.tokenizer.ids"],
                "the size of the vocabulary is unknown: `data.tokenizer` is `ids`",
                "set `model.vocab_size`, or name the tokenizer that made the token shards",
            );
        }
        let sources = [
            ("data.train", Some(&data.train)),
            ("data.validation", data.separate_validation()),
            ("eval.test", eval.test.as_ref()),
        ];
        let text = sources.into_iter().filter(|(_, source)| source.is_some_and(|source| !source.is_tokens()));
        let mut needs: Vec<(Cow<'_, str>, &str)> = text.map(|(key, _)| (key.into(), "is text")).collect();
        needs.extend(eval.tasks().map(|(name, _)| (task_key(name), "has items of text")));
        for (key, what) in needs {
            self.error(
                &[&key],
                format!("`{key}` {what}, but `data.tokenizer` is `ids`, which cannot turn text into tokens"),
                "name the tokenizer that made the token shards, such as `tokenizer: {hub: gpt2}`",
            );
        }
    }
}
