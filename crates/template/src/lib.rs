//! Templates of experiments: from a minijinja template, variables and nothing else to the text of an experiment file. In the
//! same bounds, the text of one record of a source.

mod builtins;
mod called;
mod functions;
mod guard;
mod loader;
mod marks;
mod mistakes;
mod record;
mod render;
mod rewrite;
pub mod scalar;
mod scan;
pub mod source;
pub mod tree;
mod units;
mod value;
mod vars;

pub use marks::Lines;
pub use record::{RecordTemplate, unknown_field};
pub use render::no_template;
pub use render::{Inputs, Rendered, TemplateFile, is_template, render};
pub use vars::{Variables, variables};

#[cfg(test)]
mod tests_hostile;
#[cfg(test)]
mod tests_render;
