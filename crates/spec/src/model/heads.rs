//! Attention's heads.

use super::family::Family;

/// Attention's heads. A row of its first product has the queries of all heads, then their keys, then their values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Heads {
    /// Heads of queries.
    pub queries: usize,
    /// Heads of keys, and of values. Each is shared by as many heads of queries.
    pub kv: usize,
    /// Elements of one head.
    pub width: usize,
}

impl Heads {
    /// Heads of queries that share keys and values.
    pub fn group(self) -> usize {
        self.queries / self.kv
    }

    /// The width of a row of queries, keys and values.
    pub fn qkv_width(self) -> usize {
        (self.queries + 2 * self.kv) * self.width
    }

    /// The width of a row of the heads' outputs.
    pub fn out_width(self) -> usize {
        self.queries * self.width
    }
}

/// A reason why numbers of heads do not fit the width or each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HeadMistake {
    /// The heads do not divide the width.
    Width,
    /// Rotary positions turn pairs of a head's dimensions, and a head's width is odd.
    OddWidth,
    /// The family does not share keys and values among heads.
    Grouped,
    /// The key-value heads do not divide the heads.
    Groups,
}

/// Checks numbers of heads, of which `kv` have keys and values. They divide `d_model` unless their width is given. None is 0.
pub fn head_mistakes(
    family: Family,
    d_model: usize,
    heads: usize,
    kv: usize,
    width: Option<usize>,
) -> Vec<HeadMistake> {
    if width.is_none() && !d_model.is_multiple_of(heads) {
        return vec![HeadMistake::Width];
    }
    let defaults = family.defaults();
    let checks = [
        (defaults.rotary && !width.unwrap_or(d_model / heads).is_multiple_of(2), HeadMistake::OddWidth),
        (!defaults.grouped_heads && kv != heads, HeadMistake::Grouped),
        (defaults.grouped_heads && !heads.is_multiple_of(kv), HeadMistake::Groups),
    ];
    checks.into_iter().filter(|(is_wrong, _)| *is_wrong).map(|(_, mistake)| mistake).collect()
}
