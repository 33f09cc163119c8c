//! Layers with explicit forward and backward.
