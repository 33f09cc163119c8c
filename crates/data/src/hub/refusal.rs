//! Why a split cannot be read.

/// The reason why a split cannot be read.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    /// The dataset has a script or files in other formats. The hub may have converted it.
    Unreadable(String),
    Final(String),
}

impl From<String> for Refusal {
    fn from(message: String) -> Self {
        Self::Final(message)
    }
}
