//! The splits of an experiment's data.

use runner_spec::data::DataPart;

/// Training, validation or test.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SplitName {
    Train,
    Validation,
    Test,
}

impl From<SplitName> for DataPart {
    fn from(split: SplitName) -> Self {
        match split {
            SplitName::Train => Self::Train,
            SplitName::Validation => Self::Validation,
            SplitName::Test => Self::Test,
        }
    }
}

impl SplitName {
    /// The key of the experiment under which the split's source is.
    pub(crate) fn key(self) -> &'static str {
        match self {
            Self::Train => "data.train",
            Self::Validation => "data.validation",
            Self::Test => "eval.test",
        }
    }

    /// The adjective for people: `training`.
    pub fn adjective(self) -> &'static str {
        match self {
            Self::Train => "training",
            Self::Validation => "validation",
            Self::Test => "test",
        }
    }

    /// The name in file names and cards of token shards.
    pub(crate) fn short(self) -> &'static str {
        match self {
            Self::Train => "train",
            Self::Validation => "val",
            Self::Test => "test",
        }
    }
}
