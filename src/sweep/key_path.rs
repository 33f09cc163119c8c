//! Names of what varies: variables of a template, key paths of an experiment.
