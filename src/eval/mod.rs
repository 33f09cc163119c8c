//! Evaluation of a model on its own: validation loss, multiple choice, samples.
