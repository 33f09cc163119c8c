//! Optimizers over flat buffers, clipping, and the learning-rate schedule.
