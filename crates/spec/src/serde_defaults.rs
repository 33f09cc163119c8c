//! What serde asks about fields that are left out of a record where they say what was always so: their default, and whether they
//! have it.

/// The default of what is on unless said otherwise.
pub fn yes() -> bool {
    true
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde's signature")]
pub fn is_true(v: &bool) -> bool {
    *v
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde's signature")]
pub fn is_false(v: &bool) -> bool {
    !*v
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde's signature")]
pub fn is_zero(v: &f64) -> bool {
    *v == 0.0
}
