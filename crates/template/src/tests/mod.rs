//! Whole templates: what they render to, and what they are refused for.

mod hostile;
mod rendering;
