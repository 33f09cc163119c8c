//! Expressions that leave points out.
