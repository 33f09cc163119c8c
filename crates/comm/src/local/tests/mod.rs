//! Tests of ranks on one machine, by topic.

mod failures;
mod processes;
mod speed;
