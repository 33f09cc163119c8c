//! The place of weights to start from: a path of this machine, or a model of the hub.

use std::fmt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::data::HubModel;
use crate::hub_name::HUB_DEFAULT_BRANCH;

/// The prefix of the name of a model of the hub, where a path may stand too.
const HUB_PREFIX: &str = "hub:";

/// The place of weights. Its text is a path, `hub:NAME` or `hub:NAME@REVISION`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "String", into = "String")]
pub enum WeightsSource {
    /// A Hugging Face folder or a state dict of PyTorch, absolute in a validated experiment.
    Path(PathBuf),
    /// In a validated experiment whose model was found, the revision is a commit.
    Hub(HubModel),
}

impl WeightsSource {
    /// This source with a relative path made to start from `folder`.
    #[must_use]
    pub fn relative_to(self, folder: &Path) -> Self {
        match self {
            Self::Path(path) => Self::Path(folder.join(path)),
            Self::Hub(_) => self,
        }
    }
}

/// A model of the hub on this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelFolder {
    /// The folder of the commit in the hub's cache, which has links to the files.
    pub path: PathBuf,
    pub commit: String,
}

impl From<String> for WeightsSource {
    fn from(text: String) -> Self {
        match text.strip_prefix(HUB_PREFIX) {
            Some(name) => Self::Hub(HubModel::from_text(name)),
            None => Self::Path(text.into()),
        }
    }
}

impl From<WeightsSource> for String {
    fn from(source: WeightsSource) -> Self {
        source.to_string()
    }
}

impl fmt::Display for WeightsSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Path(path) => path.display().fmt(f),
            Self::Hub(HubModel { name, revision }) if revision == HUB_DEFAULT_BRANCH => {
                write!(f, "{HUB_PREFIX}{name}")
            }
            Self::Hub(HubModel { name, revision }) => write!(f, "{HUB_PREFIX}{name}@{revision}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_tells_names_of_the_hub_from_paths() {
        let source = |text: &str| WeightsSource::from(text.to_owned());
        let hub = |name: &str, revision: &str| {
            WeightsSource::Hub(HubModel { name: name.to_owned(), revision: revision.to_owned() })
        };
        for (text, expected) in [
            ("hub:gpt2", hub("gpt2", "main")),
            ("hub:own/small@v1", hub("own/small", "v1")),
            ("hub:@", hub("", "")),
            ("./hub:gpt2", WeightsSource::Path("./hub:gpt2".into())),
            ("gpt2_124M.bin", WeightsSource::Path("gpt2_124M.bin".into())),
        ] {
            assert_eq!(source(text), expected);
            assert_eq!(expected.to_string(), text);
        }
        assert_eq!(source("hub:gpt2@main").to_string(), "hub:gpt2");
    }
}
