//! The mistake of a key that does not exist, with what the user may have meant: a similar key, the section that has it, or the key that stands for
//! another trainer's.

use crate::check::Checker;
use crate::foreign_keys;
use crate::shape::{Keys, Shape, join, sections_by_key};
use runner_spec::diagnostic::{list, nearest, short};
use runner_yaml::MAX_DEPTH;
use runner_yaml::tree::{Entry, Yaml};

impl Checker<'_> {
    /// Reports the key of `entry`, which a mapping at `path` does not have, with what the user may have meant.
    pub(crate) fn unknown_key(&mut self, entry: &Entry, keys: Keys, path: &str, at: &str) {
        if self.mistakes.is_full() {
            return;
        }
        let names = keys.names();
        let place_name = if path.is_empty() { "at the top level".to_owned() } else { format!("in `{}`", short(path)) };
        let message = format!("unknown key `{}` {place_name}", short(&entry.key));
        let help = if path.is_empty() && ["sweep", "ladder"].contains(&entry.key.as_str()) {
            self.mistakes.poison("model");
            self.mistakes.poison("data");
            "this is a sweep file: `runner sweep FILE` trains its points, and with --dry-run only plans them".to_owned()
        } else if let Some(help) = self.counterpart_help(entry, keys, path) {
            help
        } else if let Some(help) = self.nested_help(entry, |first| keys.get(first).is_some(), path) {
            help
        } else if let Some(near) = nearest(&entry.key, names.iter().copied()) {
            self.mistakes.poison(join(path, near));
            match sections_by_key(self.root).get(entry.key.as_str()) {
                Some(home) if home.iter().any(|section| section == near) => describe_home(&entry.key, home),
                Some(home) => format!("did you mean `{near}`?\n{}", describe_home(&entry.key, home)),
                None => format!("did you mean `{near}`?"),
            }
        } else if entry.key == "<<" {
            "merge keys are not part of YAML 1.2; write the keys out".to_owned()
        } else if let Some(home) = sections_by_key(self.root).get(entry.key.as_str()) {
            describe_home(&entry.key, home)
        } else if names.is_empty() {
            "it has no keys; write `{}`".to_owned()
        } else {
            format!("the keys here are {}", list(&names, "and"))
        };
        self.error(entry.place, at, message, help);
    }

    /// The help for a key such as `train.steps`, whose first part is the key of a section, as `--set` has it. `has_key` says which keys there
    /// are.
    pub(crate) fn nested_help(&mut self, entry: &Entry, has_key: impl Fn(&str) -> bool, path: &str) -> Option<String> {
        let (first, rest) = entry.key.split_once('.')?;
        if !has_key(first) {
            return None;
        }
        let keys: Vec<&str> = rest.split('.').take(MAX_DEPTH).collect();
        self.mistakes.poison(join(path, first));
        let value = match &entry.value.value {
            Yaml::Scalar { text, plain: true } => short(text),
            _ => "…".to_owned(),
        };
        let nested = keys.iter().rev().fold(value, |inner, key| format!("{{{}: {inner}}}", short(key)));
        Some(format!("write a section as a mapping: `{}: {nested}`", short(first)))
    }

    /// The help for a key of another trainer, which experiments have and no other files.
    fn counterpart_help(&mut self, entry: &Entry, keys: Keys, path: &str) -> Option<String> {
        if !matches!(self.root.shape, Shape::Keys(root) if root.get("optimizer").is_some()) {
            return None;
        }
        let counterpart = foreign_keys::find_counterpart(path, &entry.key)?;
        // Several sections have a key of this name: the current section's comes first.
        let last = counterpart.key.as_ref().and_then(|own| own.rsplit('.').next());
        let here = last.filter(|last| keys.get(last).is_some()).map(|last| join(path, last));
        // `schedule.warmup.steps` is not `train.steps`.
        let depth = |key: &String| key.matches('.').count();
        let here = here.filter(|here| counterpart.key.as_ref().is_some_and(|own| depth(own) == depth(here)));
        let own = here.or_else(|| counterpart.key.clone());
        if let Some(own) = &own {
            self.mistakes.poison(own);
        }
        Some(counterpart.help(&entry.key, own.as_deref()))
    }
}

/// Says which sections have the key `key`.
fn describe_home(key: &str, sections: &[String]) -> String {
    format!("`{key}` belongs under {}", list(sections, "or"))
}
