//! Why a split cannot be read.

/// The reason why a split cannot be read.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Refusal {
    pub(super) message: String,
    /// True if the dataset has a script or files in other formats. The hub may have converted it.
    pub(super) may_be_converted: bool,
}

impl Refusal {
    pub(super) fn unreadable(message: impl Into<String>) -> Self {
        Self { message: message.into(), may_be_converted: true }
    }
}

impl From<String> for Refusal {
    fn from(message: String) -> Self {
        Self { message, may_be_converted: false }
    }
}
