//! Commands that train: they start, resume or repeat runs.

pub(crate) mod apply;
pub(crate) mod fork;
pub(crate) mod rank;
pub(crate) mod reproduce;
pub(crate) mod resume;
pub(crate) mod seal;
pub(crate) mod submit;
pub(crate) mod verify;
