//! Names of what varies: variables of a template, key paths of an experiment.

use runner_config::check::homes;
use runner_config::shape::{Shape, root, variants};
use runner_spec::diagnostic::{list, nearest, short};

/// Names with a meaning in templates.
const WORDS: [&str; 14] =
    ["and", "else", "false", "False", "if", "in", "is", "loop", "none", "None", "not", "or", "true", "True"];

/// What is wrong with the name of a variable, and what to do about it.
pub(super) fn variable_problem(name: &str) -> Option<(String, String)> {
    let letter = |c: char| c.is_ascii_alphabetic() || c == '_';
    let fine = name.starts_with(letter) && name.chars().all(|c| letter(c) || c.is_ascii_digit());
    if fine && !WORDS.contains(&name) {
        return None;
    }
    let help = if name.contains('.') {
        "with `template`, what varies are the template's variables; key paths of an experiment go with `base`"
    } else if fine {
        "the word has a meaning in templates; choose another"
    } else {
        "a variable is letters, digits and `_`, and does not begin with a digit"
    };
    Some((format!("`{}` cannot be the name of a variable", short(name)), help.to_owned()))
}

/// What is wrong with a key path of the experiment file, and what to do about it.
pub(super) fn key_problem(path: &str) -> Option<(String, String)> {
    let mut slot = root();
    let mut before = String::new();
    for part in path.split('.') {
        let of: Vec<_> = match slot.shape {
            Shape::Keys(keys) => keys.names().into_iter().filter_map(|n| Some((n, keys.get(n)?))).collect(),
            Shape::Variants(of) => variants(of),
            _ => {
                let message = format!("`{}` is no key of an experiment", short(path));
                return Some((message, format!("`{before}` is a value of its own, without keys in it")));
            }
        };
        let Some((_, inner)) = of.iter().find(|(name, _)| *name == part) else {
            let names: Vec<&str> = of.iter().map(|(name, _)| *name).collect();
            let join = |key: &str| if before.is_empty() { key.to_owned() } else { format!("{before}.{key}") };
            let help = match (nearest(part, names.iter().copied()), homes().get(part)) {
                (Some(near), _) => format!("did you mean `{}`?", path.replacen(&join(part), &join(near), 1)),
                (None, Some(homes)) if before.is_empty() && !path.contains('.') => {
                    let paths: Vec<String> = homes.iter().map(|home| format!("{home}.{part}")).collect();
                    format!("write the whole path: {}", list(&paths, "or"))
                }
                (None, _) if before.is_empty() => format!("the keys at the top level are {}", list(&names, "and")),
                (None, _) if names.is_empty() => format!("`{before}` takes no keys"),
                (None, _) => format!("the keys in `{before}` are {}", list(&names, "and")),
            };
            return Some((format!("`{}` is no key of an experiment", short(path)), help));
        };
        slot = *inner;
        before = if before.is_empty() { part.to_owned() } else { format!("{before}.{part}") };
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_paths_are_those_of_the_experiment_file() {
        for path in ["seed", "model.layers", "optimizer.adamw.lr", "optimizer", "data.train.text.files", "train.steps"]
        {
            assert_eq!(key_problem(path), None, "{path}");
        }
        let help = |path| key_problem(path).unwrap().1;
        assert_eq!(help("model.layer"), "did you mean `model.layers`?");
        assert_eq!(help("modle.layers"), "did you mean `model.layers`?");
        assert_eq!(help("optimizer.adam.lr"), "did you mean `optimizer.adamw.lr`?");
        assert!(help("lr").contains("`optimizer.adamw.lr`"), "{}", help("lr"));
        assert!(help("train.steps.x").contains("`train.steps` is a value"));
        assert!(help("").contains("top level") && help("model..x").contains("keys in `model`"));
        assert!(key_problem("seed=1").is_some());
    }

    #[test]
    fn variables_are_identifiers() {
        for name in ["lr", "d_model", "_x1"] {
            assert_eq!(variable_problem(name), None);
        }
        for name in ["", "1x", "a-b", "a.b", "ä", "in", "true"] {
            assert!(variable_problem(name).is_some(), "{name}");
        }
    }
}
