//! Text from a user: YAML whose values know their places, and minijinja templates of experiments and of records, within limits.

#![forbid(unsafe_code)]

mod builtins;
mod functions;
mod limits;
mod line_map;
mod loader;
mod record;
mod render;
mod rewrite;
pub mod scalar;
pub mod source;
mod syntax_error;
mod tags;
mod template_error;
pub mod tree;
mod units;
mod value;
mod vars;

pub use line_map::LineMap;
pub use loader::TemplateFile;
pub use record::{RecordTemplate, unknown_field};
pub use render::{Inputs, Rendered, is_template, not_a_template, render, was_thread_refused};
pub use template_error::error_detail;
pub use value::yaml_text;
pub use vars::variables;

#[cfg(test)]
mod tests;
