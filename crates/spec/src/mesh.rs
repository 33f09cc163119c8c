//! The arrangement of ranks: stages of a pipeline by replicas of it, and the groups that communicate.

use serde::{Deserialize, Serialize};

use crate::experiment::ParallelMode;

/// `stages` · `replicas` ranks. Rank = stage · replicas + replica: replicas of a stage are neighbours, since they exchange
/// the most bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Mesh {
    pub mode: ParallelMode,
    pub stages: usize,
    pub replicas: usize,
}

/// Ranks that take part in the same collectives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RankGroup {
    /// All ranks.
    World,
    /// The replicas of stage `stage`.
    Replicas { stage: usize },
    /// The first and the last stage of replica `replica`, where both hold the tied embedding.
    Tied { replica: usize },
}

impl Mesh {
    /// One rank.
    pub fn single() -> Self {
        Self { mode: ParallelMode::Single, stages: 1, replicas: 1 }
    }

    pub fn world_size(self) -> usize {
        self.stages * self.replicas
    }

    pub fn rank(self, stage: usize, replica: usize) -> usize {
        stage * self.replicas + replica
    }

    /// The stage and the replica of `rank`.
    pub fn stage_and_replica(self, rank: usize) -> (usize, usize) {
        (rank / self.replicas, rank % self.replicas)
    }

    /// The ranks of `group`, ascending.
    pub fn members(self, group: RankGroup) -> Vec<usize> {
        match group {
            RankGroup::World => (0..self.world_size()).collect(),
            RankGroup::Replicas { stage } => (0..self.replicas).map(|replica| self.rank(stage, replica)).collect(),
            RankGroup::Tied { replica } => vec![self.rank(0, replica), self.rank(self.stages - 1, replica)],
        }
    }

    /// The number of ranks in `group`.
    pub fn size(self, group: RankGroup) -> usize {
        match group {
            RankGroup::World => self.world_size(),
            RankGroup::Replicas { .. } => self.replicas,
            RankGroup::Tied { .. } => 2,
        }
    }

    /// Every group, each at its `index`.
    pub fn groups(self) -> Vec<RankGroup> {
        let replicas = (0..self.stages).map(|stage| RankGroup::Replicas { stage });
        let tied = (0..self.replicas).filter(|_| self.stages > 1).map(|replica| RankGroup::Tied { replica });
        std::iter::once(RankGroup::World).chain(replicas).chain(tied).collect()
    }

    /// The position of `group` in `groups`.
    pub fn index(self, group: RankGroup) -> usize {
        match group {
            RankGroup::World => 0,
            RankGroup::Replicas { stage } => 1 + stage,
            RankGroup::Tied { replica } => 1 + self.stages + replica,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_and_places_are_inverse() {
        let mesh = Mesh { mode: ParallelMode::Pipeline, stages: 3, replicas: 4 };
        for rank in 0..mesh.world_size() {
            let (stage, replica) = mesh.stage_and_replica(rank);
            assert_eq!(mesh.rank(stage, replica), rank);
            assert!(mesh.members(RankGroup::Replicas { stage }).contains(&rank));
        }
        assert_eq!(mesh.members(RankGroup::Tied { replica: 1 }), [1, 9]);
    }

    #[test]
    fn groups_have_indexes_and_sizes() {
        for mesh in [Mesh::single(), Mesh { mode: ParallelMode::Pipeline, stages: 2, replicas: 3 }] {
            for (index, group) in mesh.groups().into_iter().enumerate() {
                assert_eq!(mesh.index(group), index);
                assert_eq!(mesh.size(group), mesh.members(group).len());
            }
        }
    }
}
