//! Files that the hub converted to parquet, on its branch `refs/convert/parquet`.

use std::collections::BTreeSet;

use super::refusal::Refusal;
use super::repository::suggestion;
use super::select::{SelectedBy, SelectedFiles};
use runner_spec::experiment::FileFormat;

/// The branch on which the hub keeps the parquet files that it makes of datasets in other formats.
pub(super) const CONVERTED: &str = "refs/convert/parquet";
const ENDING: &str = "parquet";

/// Files that the hub converted: `CONFIG/SPLIT/0000.parquet`, with their configurations and splits. `None` if `all` have other names.
fn converted(all: &[String]) -> Option<Vec<(&str, &str, &String)>> {
    let parse = |file: &'_ String| {
        let mut parts = file.split('/');
        let (config, split, name) = (parts.next()?, parts.next()?, parts.next()?);
        let number = name.strip_suffix(ENDING)?.strip_suffix('.')?;
        let is_number = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
        let length = config.len() + split.len() + 2;
        (is_number && parts.next().is_none()).then_some((config.len(), length))
    };
    let files = all.iter().filter(|file| *file != ".gitattributes");
    let parsed = files.map(|file| parse(file).map(|(config, end)| (&file[..config], &file[config + 1..end - 1], file)));
    parsed.collect::<Option<Vec<_>>>().filter(|files| !files.is_empty())
}

/// Selects among files that the hub converted; `None` if `all` have other names than such files.
///
/// # Errors
/// If they do not have the split, or only a part of it.
pub(super) fn select_converted(
    all: &[String],
    config: Option<&str>,
    split: &str,
) -> Option<Result<SelectedFiles, Refusal>> {
    let files = converted(all)?;
    let format = FileFormat::of_ending(ENDING)?;
    let configs: BTreeSet<&str> = files.iter().map(|(config, ..)| *config).collect();
    let names = |names: BTreeSet<&str>| names.into_iter().map(str::to_owned).collect::<Vec<_>>();
    let only = configs.first().copied().filter(|_| configs.len() == 1);
    let Some(wanted) = config.or(only) else {
        let message = format!("it has several configurations; give `config`{}", suggestion("", &names(configs)));
        return Some(Err(Refusal::Final(message)));
    };
    let of_config: Vec<_> = files.into_iter().filter(|(config, ..)| *config == wanted).collect();
    if of_config.is_empty() {
        let message = format!("no configuration `{wanted}`{}", suggestion(wanted, &names(configs)));
        return Some(Err(Refusal::Final(message)));
    }
    let splits: BTreeSet<&str> = of_config.iter().map(|(_, split, _)| *split).collect();
    let mut files: Vec<String> =
        of_config.iter().filter(|(_, name, _)| *name == split).map(|(.., file)| (*file).clone()).collect();
    files.sort_unstable();
    Some(if files.is_empty() {
        let part = if splits.contains(format!("partial-{split}").as_str()) {
            format!("the hub has converted only a part of split `{split}`")
        } else {
            format!("no split `{split}`{}", suggestion(split, &names(splits)))
        };
        Err(Refusal::Final(part))
    } else {
        Ok(SelectedFiles { format, files, by: SelectedBy::Name })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(files: &[&str]) -> Vec<String> {
        files.iter().map(|f| (*f).to_owned()).collect()
    }

    #[test]
    fn converted_files_lie_in_folders_of_configurations_and_splits() {
        let files = names(&[
            ".gitattributes",
            "en/train/0001.parquet",
            "en/train/0000.parquet",
            "en/test/0000.parquet",
            "de/partial-train/0000.parquet",
        ]);
        let of = |config, split| match select_converted(&files, config, split).unwrap() {
            Ok(selected) => Ok(selected.files),
            Err(Refusal::Unreadable(message) | Refusal::Final(message)) => Err(message),
        };
        assert_eq!(of(Some("en"), "train").unwrap(), ["en/train/0000.parquet", "en/train/0001.parquet"]);
        assert_eq!(of(Some("de"), "train").unwrap_err(), "the hub has converted only a part of split `train`");
        assert_eq!(
            of(Some("en"), "tests").unwrap_err(),
            "no split `tests`: did you mean `test`? available: `test` and `train`"
        );
        assert_eq!(
            of(None, "train").unwrap_err(),
            "it has several configurations; give `config`; available: `de` and `en`"
        );
        assert_eq!(of(Some("fr"), "train").unwrap_err(), "no configuration `fr`; available: `de` and `en`");
        for other in [&["en/train/a.parquet"][..], &["en/0.parquet"], &["a/en/train/0.parquet"], &["train.jsonl"], &[]]
        {
            assert_eq!(select_converted(&names(other), None, "train"), None);
        }
    }
}
