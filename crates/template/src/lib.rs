//! minijinja templates of experiments and of records, within limits.

#![forbid(unsafe_code)]

mod builtins;
pub mod expression;
mod functions;
mod limits;
mod line_map;
mod loader;
mod record;
mod render;
mod rewrite;
mod tags;
mod template_error;
mod units;
mod value;
mod vars;

pub use limits::error_detail;
pub use line_map::LineMap;
pub use loader::TemplateFile;
pub use record::{RecordTemplate, unknown_field};
pub use render::{Inputs, Rendered, is_template, not_a_template, render};
pub use value::yaml_text;
pub use vars::variables;

#[cfg(test)]
mod tests;
