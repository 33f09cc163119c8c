//! Kernels, steps and runs on GPUs compared with the CPU. Without a GPU the tests are skipped with a note; `make test-emulated` runs them
//! on a driver that computes on the CPU (tests/emulated).

#![cfg(feature = "cuda")]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot be set up has failed")]
#![allow(clippy::print_stdout, reason = "tables of deviations, with --nocapture")]
#![allow(unreachable_pub, reason = "modules of one test binary")]

mod attention;
#[path = "../common/mod.rs"]
mod common;
mod device;
mod kernels;
mod layouts;
mod models;
mod runs;
#[path = "../common/sandbox.rs"]
mod sandbox;
mod sharding;
mod sides;
