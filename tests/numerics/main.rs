//! Tests of what is computed: layers, whole models, training and evaluation against other implementations, against finite
//! differences, and against themselves under other layouts.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot be set up has failed")]
#![allow(clippy::print_stdout, reason = "tables of deviations, with --nocapture")]
#![allow(unreachable_pub, reason = "modules of one test binary")]
#![allow(clippy::single_range_in_vec_init, reason = "a list of chunks may have one")]

mod attention;
mod autograd;
mod broken_weight_files;
#[path = "../common/mod.rs"]
mod common;
mod golden;
mod gradients;
mod layouts;
mod llama_oracle;
mod peers;
mod rounding_and_randomness;
mod samples;
mod sharding;
mod stage_eval;
mod stages;
mod sums;
mod tutorial;
mod twenty_steps;
mod weight_files;
