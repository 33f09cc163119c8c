//! Sources: `data.train`, and those of `data.validation`.

use super::raw_data::{RawHubSource, RawJson, RawParquet, RawSource};
use super::resolve::Resolver;
use runner_spec::experiment::{HubSource, JsonSource, ParquetSource, Source, Validation};
use runner_spec::hub_name;
use runner_template::RecordTemplate;

/// The column or field that is read unless the file names one.
const TEXT: &str = "text";

impl Resolver<'_> {
    /// The source at `key`.
    pub fn source(&mut self, raw: RawSource, key: &str) -> Option<Source> {
        Some(match raw {
            RawSource::Text { files } => Source::Text { files: self.files(&format!("{key}.text.files"), &files)? },
            RawSource::Parquet(raw) => Source::Parquet(self.parquet(raw, &format!("{key}.parquet"))?),
            RawSource::Jsonl(raw) => Source::Jsonl(self.json(raw, &format!("{key}.jsonl"))?),
            RawSource::Json(raw) => Source::Json(self.json(raw, &format!("{key}.json"))?),
            RawSource::Tokens { files } => {
                Source::Tokens { files: self.files(&format!("{key}.tokens.files"), &files)? }
            }
            RawSource::Builtin { corpus } => Source::Builtin { corpus },
            RawSource::Hub(raw) => Source::Hub(self.hub_source(raw, &format!("{key}.hub"))?),
        })
    }

    pub fn validation(&mut self, raw: Validation<RawSource>) -> Option<Validation> {
        match raw {
            Validation::Fraction(fraction) if fraction <= 0.0 || fraction >= 1.0 => {
                self.error(
                    &["data.validation.fraction"],
                    format!("`data.validation.fraction` lies between 0 and 1, and is {fraction}"),
                    "0.1 holds out the last tenth of the training source; `validation: null` holds out nothing",
                );
                None
            }
            Validation::Fraction(fraction) => Some(Validation::Fraction(fraction)),
            Validation::Source(source) => self.source(source, "data.validation").map(Validation::Source),
        }
    }

    fn parquet(&mut self, raw: RawParquet, key: &str) -> Option<ParquetSource> {
        let files = self.files(&format!("{key}.files"), &raw.files);
        let (column, template) = self.text_of(raw.column, raw.template, key)?;
        Some(ParquetSource { files: files?, column, template })
    }

    fn json(&mut self, raw: RawJson, key: &str) -> Option<JsonSource> {
        let files = self.files(&format!("{key}.files"), &raw.files);
        let (field, template) = self.text_of(raw.field, raw.template, key)?;
        Some(JsonSource { files: files?, field, template })
    }

    fn hub_source(&mut self, raw: RawHubSource, key: &str) -> Option<HubSource> {
        let mut fits = self.hub_name(&format!("{key}.dataset"), &raw.dataset)
            & self.hub_revision(&format!("{key}.revision"), &raw.revision);
        for (name, value) in [("config", raw.config.as_ref()), ("split", Some(&raw.split))] {
            if let Some(problem) = value.and_then(|value| hub_name::word_problem(value)) {
                self.error(
                    &[&format!("{key}.{name}")],
                    format!("`{name}` {problem}"),
                    "as the dataset's page names it",
                );
                fits = false;
            }
        }
        let (column, template) = self.text_of(raw.column, raw.template, key)?;
        let RawHubSource { dataset, config, split, revision, .. } = raw;
        fits.then_some(HubSource { dataset, config, split, column, template, revision })
    }

    /// One of a field and a template; the field `text` unless either is given.
    fn text_of(
        &mut self,
        field: Option<String>,
        template: Option<String>,
        key: &str,
    ) -> Option<(Option<String>, Option<String>)> {
        let Some(template) = template else {
            return Some((Some(field.unwrap_or_else(|| TEXT.to_owned())), None));
        };
        if let Err(message) = RecordTemplate::new(&template) {
            let help = "fields are filled in as in `{{ instruction }}`; `{% if input %}…{% endif %}` asks whether one has text";
            self.error(&[&format!("{key}.template")], format!("not a template: {message}"), help);
            return None;
        }
        Some((None, Some(template)))
    }

    /// Reports a `name` that cannot be a repository of the hub; true if it can.
    pub fn hub_name(&mut self, key: &str, name: &str) -> bool {
        let problem = hub_name::name_problem(name);
        if let Some(problem) = &problem {
            let help = "names are as `owner/name` or `name`: letters, digits, `.`, `_` and `-`";
            self.error(&[key], format!("`{key}` {problem}"), help);
        }
        problem.is_none()
    }

    /// Reports a `revision` that cannot be a branch, tag or commit; true if it can.
    pub fn hub_revision(&mut self, key: &str, revision: &str) -> bool {
        let problem = hub_name::revision_problem(revision);
        if let Some(problem) = &problem {
            self.error(&[key], format!("`{key}` {problem}"), "a branch, a tag or a commit, such as `main`");
        }
        problem.is_none()
    }
}
