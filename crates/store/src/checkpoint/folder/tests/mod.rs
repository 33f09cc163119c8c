//! Tests of checkpoints as they lie on a disk.

mod parts;
mod saving;
