//! Files that the hub converted to parquet, on its branch `refs/convert/parquet`.

use std::collections::BTreeSet;

use super::refusal::Refusal;
use super::repository::suggestion;
use super::select::{SelectedBy, SelectedFiles};
use runner_files::is_number;
use runner_spec::experiment::FileFormat;

/// The branch on which the hub keeps the parquet files that it makes of datasets in other formats.
pub(super) const CONVERTED: &str = "refs/convert/parquet";
const ENDING: &str = "parquet";

/// The configuration and the split of the file `CONFIG/SPLIT/0000.parquet` that the hub converted, and the file; `None` for other names.
fn parse(file: &String) -> Option<(&str, &str, &String)> {
    let [config, split, name] = file.split('/').collect::<Vec<_>>()[..] else { return None };
    let number = name.strip_suffix(ENDING)?.strip_suffix('.')?;
    is_number(number).then_some((config, split, file))
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
    let files = all.iter().filter(|file| *file != ".gitattributes").map(parse).collect::<Option<Vec<_>>>()?;
    if files.is_empty() {
        return None;
    }
    let format = FileFormat::of_ending(ENDING)?;
    let configs: BTreeSet<&str> = files.iter().map(|(config, ..)| *config).collect();
    let only = configs.first().copied().filter(|_| configs.len() == 1);
    let Some(wanted) = config.or(only) else {
        let message =
            format!("it has several configurations; give `config`{}", suggestion("", &Vec::from_iter(configs)));
        return Some(Err(message.into()));
    };
    let of_config: Vec<_> = files.into_iter().filter(|(config, ..)| *config == wanted).collect();
    if of_config.is_empty() {
        let message = format!("no configuration `{wanted}`{}", suggestion(wanted, &Vec::from_iter(configs)));
        return Some(Err(message.into()));
    }
    let splits: BTreeSet<&str> = of_config.iter().map(|(_, split, _)| *split).collect();
    let mut files: Vec<String> =
        of_config.iter().filter(|(_, name, _)| *name == split).map(|(.., file)| (*file).clone()).collect();
    files.sort_unstable();
    Some(if files.is_empty() {
        let part = if splits.contains(format!("partial-{split}").as_str()) {
            format!("the hub has converted only a part of split `{split}`")
        } else {
            format!("no split `{split}`{}", suggestion(split, &Vec::from_iter(splits)))
        };
        Err(part.into())
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
        let of = |config, split| {
            let selected = select_converted(&files, config, split).unwrap();
            selected.map(|selected| selected.files).map_err(|refusal| refusal.message)
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
