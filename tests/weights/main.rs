//! Weights of other programs: what `transformers` wrote and PyTorch computes from it, files that are broken, and runs that are
//! exported and started from again.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot be set up has failed")]
#![allow(unreachable_pub, reason = "shared among the modules of one test")]

mod broken;
mod lab;
mod read;
mod runs;
