//! The names of what varies: variables of a template, or key paths of an experiment.

use runner_config::check::{homes, join};
use runner_config::shape::{Shape, root, variants};
use runner_spec::diagnostic::{list, nearest, short};

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
        "with `template`, what varies are the template's variables; key paths of an experiment go with `base`"
    } else if is_identifier {
        "the word has a meaning in templates; choose another"
    } else {
        "a variable is letters, digits and `_`, and does not begin with a digit"
    };
    Err((format!("`{}` cannot be the name of a variable", short(name)), help.to_owned()))
}

/// Checks a key path of the experiment file.
pub(super) fn check_key_path(path: &str) -> Result<(), NameProblem> {
    let mut slot = root();
    let mut before = String::new();
    for part in path.split('.') {
        let of: Vec<_> = match slot.shape {
            Shape::Keys(keys) => keys.names().into_iter().filter_map(|n| Some((n, keys.get(n)?))).collect(),
            Shape::Variants(of) => variants(of),
            _ => {
                let message = format!("`{}` is no key of an experiment", short(path));
                return Err((message, format!("`{before}` is a value of its own, without keys in it")));
            }
        };
        let Some((_, inner)) = of.iter().find(|(name, _)| *name == part) else {
            let names: Vec<&str> = of.iter().map(|(name, _)| *name).collect();
            let help = match (nearest(part, names.iter().copied()), homes(root()).get(part)) {
                (Some(near), _) => {
                    format!("did you mean `{}`?", path.replacen(&join(&before, part), &join(&before, near), 1))
                }
                (None, Some(homes)) if before.is_empty() && !path.contains('.') => {
                    let paths: Vec<String> = homes.iter().map(|home| format!("{home}.{part}")).collect();
                    format!("write the whole path: {}", list(&paths, "or"))
                }
                (None, _) if before.is_empty() => format!("the keys at the top level are {}", list(&names, "and")),
                (None, _) if names.is_empty() => format!("`{before}` takes no keys"),
                (None, _) => format!("the keys in `{before}` are {}", list(&names, "and")),
            };
            return Err((format!("`{}` is no key of an experiment", short(path)), help));
        };
        slot = *inner;
        before = join(&before, part);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_paths_are_those_of_the_experiment_file() {
        for path in ["seed", "model.layers", "optimizer.adamw.lr", "optimizer", "data.train.text.files", "train.steps"]
        {
            assert_eq!(check_key_path(path), Ok(()), "{path}");
        }
        let help = |path| check_key_path(path).unwrap_err().1;
        assert_eq!(help("model.layer"), "did you mean `model.layers`?");
        assert_eq!(help("modle.layers"), "did you mean `model.layers`?");
        assert_eq!(help("optimizer.adam.lr"), "did you mean `optimizer.adamw.lr`?");
        assert!(help("lr").contains("`optimizer.adamw.lr`"), "{}", help("lr"));
        assert!(help("train.steps.x").contains("`train.steps` is a value"));
        assert!(help("").contains("top level") && help("model..x").contains("keys in `model`"));
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
