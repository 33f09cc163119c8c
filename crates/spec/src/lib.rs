//! The plain types that the steps of a run hand to each other: experiment, model, facts, program, plan, events; and tools that all
//! crates share: errors, diagnostics, number formats, counter-based random numbers.
//!
//! Nothing here reads a file, a clock, the environment or a device.

#![forbid(unsafe_code)]

pub mod cluster;
pub mod data;
pub mod diagnostic;
pub mod error;
pub mod event;
pub mod exit;
pub mod experiment;
pub mod forecast;
pub mod format;
pub mod hub_name;
pub mod line_part;
pub mod lookalikes;
pub mod measure;
pub mod mesh;
pub mod model;
pub mod optimizer;
pub mod panics;
pub mod philox;
pub mod plan;
pub mod precision;
pub mod program;
pub mod rates;
pub mod safe_text;
pub mod schedule;
pub mod serde_defaults;
mod skip;
pub mod topology;
pub mod transfer;
