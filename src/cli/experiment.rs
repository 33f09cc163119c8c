//! Commands about an experiment file: check, plan, render, write.

pub(crate) mod coordinates;
pub(crate) mod import;
pub(crate) mod init;
pub(crate) mod plan;
pub(crate) mod plan_search;
pub(crate) mod render;
pub(crate) mod schema;
pub(crate) mod validate;
