//! Sources: `data.train`, and those of `data.validation` and `eval.test`.

use crate::resolve::resolver::Resolver;
use runner_spec::experiment::{DEFAULT_FIELD, HubSource, Source, Validation};
use runner_spec::hub_name;
use runner_template::RecordTemplate;

impl Resolver<'_> {
    /// Resolves the source at `key`: joins its paths to the folder of the experiment, and fills in the default field.
    pub(crate) fn source(&mut self, source: &mut Source, key: &str) -> Option<()> {
        let key = format!("{key}.{}", source.key());
        let files = source.files_mut().map_or(Some(()), |files| self.files(&key, files));
        let hub = source.hub().is_none_or(|HubSource { dataset, config, split, revision, .. }| {
            self.hub_dataset(&key, dataset, config.as_deref(), split, revision)
        });
        if let Some((field, template)) = source.record_text_mut() {
            self.text_of_record(field, template.as_deref(), &key)?;
        }
        files.filter(|()| hub)
    }

    pub(crate) fn validation(&mut self, mut validation: Validation) -> Option<Validation> {
        match &mut validation {
            Validation::Fraction(fraction) if *fraction <= 0.0 || *fraction >= 1.0 => {
                return self.refuse(
                    &["data.validation.fraction"],
                    format!("`data.validation.fraction` must be greater than 0 and less than 1, got {fraction}"),
                    "0.1 holds out the last tenth of the training source; `validation: null` holds out nothing",
                );
            }
            Validation::Fraction(_) => {}
            Validation::Source(source) => self.source(source, "data.validation")?,
        }
        Some(validation)
    }

    /// Reports names under `key` that cannot be those of a dataset of the hub and its parts; true if they can.
    pub(crate) fn hub_dataset(
        &mut self,
        key: &str,
        dataset: &str,
        config: Option<&str>,
        split: &str,
        revision: &str,
    ) -> bool {
        let mut fits =
            self.hub_name(&format!("{key}.dataset"), dataset) & self.hub_revision(&format!("{key}.revision"), revision);
        for (name, value) in [("config", config), ("split", Some(split))] {
            let problem = value.and_then(hub_name::word_problem);
            fits &= self.is_hub_word(&format!("{key}.{name}"), problem, "use the name on the dataset's page");
        }
        fits
    }

    /// Checks the template, or else fills in the default field.
    fn text_of_record(&mut self, field: &mut Option<String>, template: Option<&str>, key: &str) -> Option<()> {
        let Some(template) = template else {
            field.get_or_insert_with(|| DEFAULT_FIELD.to_owned());
            return Some(());
        };
        *field = None;
        if let Err(error) = RecordTemplate::new(template) {
            let help = "write a field as `{{ instruction }}`; `{% if input %}…{% endif %}` tests whether one has text";
            let reported = self.mistakes.diagnostics.len();
            self.error(&[&format!("{key}.template")], format!("invalid template: {error}"), help);
            self.mistakes.diagnostics[reported..].iter_mut().for_each(|mistake| mistake.kind = error.kind);
            return None;
        }
        Some(())
    }

    /// Reports a `name` that cannot be a repository of the hub; true if it can.
    pub(crate) fn hub_name(&mut self, key: &str, name: &str) -> bool {
        let help = "write `owner/name` or `name`, of letters, digits, `.`, `_` and `-`";
        self.is_hub_word(key, hub_name::name_problem(name), help)
    }

    /// Reports a `revision` that cannot be a branch, tag or commit; true if it can.
    pub(crate) fn hub_revision(&mut self, key: &str, revision: &str) -> bool {
        let help = "name a branch, a tag or a commit, such as `main`";
        self.is_hub_word(key, hub_name::revision_problem(revision), help)
    }

    /// Reports the `problem` of the value of `key`; true if there is none.
    fn is_hub_word(&mut self, key: &str, problem: Option<String>, help: &str) -> bool {
        let Some(problem) = problem else { return true };
        self.error(&[key], format!("`{key}` {problem}"), help);
        false
    }
}
