//! Black-box tests of the program: each runs the binary and checks what it prints, writes and returns.

#![allow(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]

mod promises;
