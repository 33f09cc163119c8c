//! Tests of checkpoints as they lie on a disk.

mod damaged_parts;
mod parts;
mod saving;
