//! Black-box tests of the program: each runs the binary and checks what it prints, writes and returns.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot be set up has failed")]
#![allow(clippy::print_stderr, reason = "times that are worth reading, with --nocapture")]
#![allow(unreachable_pub, reason = "modules of one test binary")]

mod articles;
mod background_saves;
mod changed_files;
mod comparability;
mod compare;
mod compose;
mod damaged_records;
mod data;
mod doctor;
mod embed;
mod evaluated_text;
mod experiments;
mod first_contact;
mod fork_evaluations;
mod forks;
mod groups;
mod hints;
mod housekeeping;
#[allow(dead_code, reason = "the tests of `data` use more of it")]
#[path = "../../crates/data/src/hub/tests/http.rs"]
mod http;
mod hub;
mod interrupts;
mod ladders;
mod launchers;
mod layout_changes;
mod layout_search;
mod limits;
mod links;
mod memory_limit;
mod messages;
mod models;
mod moved_data;
mod prepared_folders;
mod promises;
#[allow(dead_code, reason = "the tests of `comm` use more of it")]
#[path = "../../crates/comm/src/tcp/tests/proxy.rs"]
mod proxy;
mod ranks;
mod report;
mod reproduce;
mod restarts;
mod row_formats;
mod runs;
#[path = "../common/sandbox.rs"]
mod sandbox;
mod seal;
mod selection;
mod session_facts;
mod sharding;
mod shims;
mod slurm;
mod stages;
mod submit;
mod sweep_removal;
mod sweep_speed;
mod sweeps;
mod tasks;
mod templates;
mod tokenizers;
mod torture;
mod tracking;
mod trunks;
mod tutorial;
mod weights;
