//! The names of what varies: variables of a template, or key paths of an experiment.

use runner_config::check;
use runner_spec::diagnostic::short;

/// A mistake in a name, and how to correct it.
type NameProblem = (String, String);

/// Checks a name.
pub(super) type NameCheck = fn(&str) -> Result<(), NameProblem>;

/// Names with a meaning in templates.
const RESERVED_WORDS: [&str; 14] =
    ["and", "else", "false", "False", "if", "in", "is", "loop", "none", "None", "not", "or", "true", "True"];

/// Checks the name of a template's variable.
pub(super) fn check_variable_name(name: &str) -> Result<(), NameProblem> {
    let letter = |c: char| c.is_ascii_alphabetic() || c == '_';
    let is_identifier = name.starts_with(letter) && name.chars().all(|c| letter(c) || c.is_ascii_digit());
    if is_identifier && !RESERVED_WORDS.contains(&name) {
        return Ok(());
    }
    let help = if name.contains('.') {
        "with `template`, a sweep varies the template's variables; to vary keys of an experiment, use `base`"
    } else if is_identifier {
        "the word has a meaning in templates; choose another"
    } else {
        "use letters, digits and `_`, and do not start with a digit"
    };
    Err((format!("`{}` cannot be the name of a variable", short(name)), help.to_owned()))
}

/// Checks a key path of the experiment file.
pub(super) fn check_key_path(path: &str) -> Result<(), NameProblem> {
    check::check_key_path(path).map_err(|mistake| {
        let help = [mistake.message, mistake.help].into_iter().filter(|text| !text.is_empty()).collect::<Vec<_>>();
        (format!("an experiment does not have the key `{}`", short(path)), help.join("; "))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_paths_are_those_of_the_experiment_file() {
        for path in [
            "seed",
            "model.layers",
            "optimizer.adamw.lr",
            "optimizer",
            "data.train.text.files",
            "train.steps",
            "model.init.from",
        ] {
            assert_eq!(check_key_path(path), Ok(()), "{path}");
        }
        let help = |path| check_key_path(path).unwrap_err().1;
        assert_eq!(
            help("model.layer"),
            "unknown key `layer` in `model`; did you mean `layers`?\n`layer` belongs under `model.sums`"
        );
        assert!(help("modle.layers").ends_with("did you mean `model`?"));
        assert!(help("optimizer.adam.lr").ends_with("did you mean `adamw`?"));
        assert!(help("lr").contains("`lr` belongs under `optimizer.adamw`, `optimizer.lion`, "), "{}", help("lr"));
        assert!(help("train.steps.x").contains("`train.steps` must be a whole number"), "{}", help("train.steps.x"));
        assert!(help("").contains("top level") && help("model..x").contains("in `model`"));
        assert!(check_key_path(&"a.".repeat(100_000)).is_err());
        assert!(check_key_path("seed=1").is_err());
    }

    #[test]
    fn variables_are_identifiers() {
        for name in ["lr", "d_model", "_x1"] {
            assert_eq!(check_variable_name(name), Ok(()));
        }
        for name in ["", "1x", "a-b", "a.b", "ä", "in", "true"] {
            assert!(check_variable_name(name).is_err(), "{name}");
        }
    }
}
