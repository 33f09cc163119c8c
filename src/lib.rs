//! runner: the declarative experiment runner for language-model pretraining.
//!
//! A run is a pure function of a file, lowered in steps: layered YAML → `config::Experiment` → `plan::Plan` →
//! `exec` (events) → `store` and `report`. See `docs/architecture.md`.

pub mod calibrate;
pub mod cli;
pub mod comm;
pub mod compare;
pub mod config;
pub mod data;
pub mod doctor;
pub mod eval;
pub mod exec;
pub mod export;
#[cfg(feature = "cuda")]
pub mod gpu;
pub mod heap;
pub mod hub;
pub mod kernels;
pub mod launch;
mod left_out;
pub mod model;
pub mod nn;
pub mod optim;
pub mod plan;
pub mod report;
pub mod store;
pub mod sweep;
pub mod template;
pub mod weights;
