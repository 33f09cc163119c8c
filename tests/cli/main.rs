//! Black-box tests of the program: each runs the binary and checks what it prints, writes and returns.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot be set up has failed")]
#![allow(clippy::print_stderr, reason = "times that are worth reading, with --nocapture")]
#![allow(unreachable_pub, reason = "modules of one test binary")]

mod comparability;
mod compare;
mod damaged_records;
mod data;
mod doctor;
mod embed;
mod experiments;
mod first_contact;
mod housekeeping;
mod launchers;
mod messages;
mod promises;
mod ranks;
mod report;
mod reproduce;
mod runs;
#[path = "../common/sandbox.rs"]
mod sandbox;
mod shims;
mod slurm;
mod sweeps;
mod templates;
mod weights;
