//! The groups and channels over which ranks communicate. They are declared before a run starts.

use std::collections::HashSet;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::error::PlainError;
use crate::format::choice_name;

/// The most blocks of NCCL's kernels for a group and for a channel. Each takes a multiprocessor while it waits for other ranks, and buffers of
/// some MiB.
pub const GROUP_BLOCKS: usize = 16;
pub const CHANNEL_BLOCKS: usize = 8;

/// Index into `Topology::groups`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct GroupId(pub usize);

/// The content of a channel. Activations and gradients between the same two ranks do not queue behind each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[repr(u8)]
pub enum Lane {
    Activation,
    Gradient,
}

impl fmt::Display for Lane {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&choice_name(self))
    }
}

/// All groups and channels of a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Topology {
    pub world_size: usize,
    /// Ranks of the world; their order is the order of sums.
    pub groups: Vec<Vec<usize>>,
    pub channels: Vec<Channel>,
}

/// A bounded channel from one rank to another: `slots` messages of up to `slot_bytes` bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Channel {
    pub from: usize,
    pub to: usize,
    pub lane: Lane,
    pub slots: usize,
    pub slot_bytes: usize,
}

impl Topology {
    /// One group of all ranks, no channels.
    pub fn everyone(world_size: usize) -> Self {
        Self { world_size, groups: vec![(0..world_size).collect()], channels: Vec::new() }
    }

    /// Checks that groups and channels name ranks of the world, each once.
    ///
    /// # Errors
    /// The first mistake.
    pub fn check(&self) -> Result<(), PlainError> {
        let fail = |mistake: String| Err(PlainError::failure(mistake));
        let world_size = self.world_size;
        if world_size == 0 {
            return fail("a world needs at least one rank".to_owned());
        }
        for (group, ranks) in self.groups.iter().enumerate() {
            let mut seen = HashSet::new();
            for &rank in ranks {
                if rank >= world_size {
                    return fail(format!("group {group} names rank {rank}, but the world has {world_size} ranks"));
                }
                if !seen.insert(rank) {
                    return fail(format!("group {group} names rank {rank} twice"));
                }
            }
            if ranks.is_empty() {
                return fail(format!("group {group} has no ranks"));
            }
        }
        let mut seen = HashSet::new();
        for c in &self.channels {
            let mistake = if c.from >= world_size || c.to >= world_size {
                "no such rank in this world"
            } else if c.slots == 0 {
                "needs at least one slot"
            } else if !seen.insert((c.from, c.to, c.lane)) {
                "declared twice"
            } else {
                continue;
            };
            return fail(format!("the {} channel from rank {} to rank {}: {mistake}", c.lane, c.from, c.to));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mistakes_are_found() {
        let good = Topology::everyone(2);
        good.check().unwrap();
        let with = |groups: Vec<Vec<usize>>| Topology { groups, ..good.clone() }.check().unwrap_err().to_string();
        assert_eq!(with(vec![vec![0], vec![0, 2]]), "group 1 names rank 2, but the world has 2 ranks");
        assert_eq!(with(vec![vec![1, 0, 1]]), "group 0 names rank 1 twice");
        assert_eq!(with(vec![vec![]]), "group 0 has no ranks");
        let c = Channel { from: 0, to: 1, lane: Lane::Gradient, slots: 1, slot_bytes: 4 };
        let channels = |channels: Vec<Channel>| Topology { channels, ..good.clone() }.check();
        channels(vec![c, Channel { lane: Lane::Activation, ..c }, Channel { from: 1, to: 0, ..c }]).unwrap();
        let text = channels(vec![c, c]).unwrap_err().to_string();
        assert_eq!(text, "the gradient channel from rank 0 to rank 1: declared twice");
        assert!(channels(vec![Channel { to: 2, ..c }]).is_err());
        assert!(channels(vec![Channel { slots: 0, ..c }]).is_err());
    }
}
