//! The links of groups that transfer tensors. They are made at the start.

use std::collections::HashMap;
use std::sync::Arc;

use cudarc::driver::CudaContext;

use super::library;
use super::link::{self, Link};
use super::watch::Watched;
use crate::error::{CommError, OperationKind};
use runner_compute::gpu::Gpu;
use runner_spec::topology::{GROUP_BLOCKS, GroupId, Topology};

/// This rank in a group.
#[derive(Debug, Clone)]
pub(super) struct Member {
    pub(super) link: Arc<Link>,
    pub(super) ranks: Vec<usize>,
}

/// Connects `groups` of this rank, which all their members name in the order of their numbers. `None` where this rank is the only member.
pub(super) fn open(
    watched: &Watched,
    topology: &Topology,
    gpu: &Gpu,
    groups: &[GroupId],
) -> Result<HashMap<GroupId, Option<Member>>, CommError> {
    let context = gpu.stream().context();
    groups.iter().map(|group| Ok((*group, join(watched, topology, context, *group)?))).collect()
}

/// Makes the link of a group; `None` if this rank is its only member.
fn join(
    watched: &Watched,
    topology: &Topology,
    context: &Arc<CudaContext>,
    group: GroupId,
) -> Result<Option<Member>, CommError> {
    let host = &*watched.host;
    let rank = host.rank();
    let ranks = topology.groups.get(group.0).filter(|ranks| ranks.contains(&rank));
    let ranks = ranks.ok_or(CommError::NotMember { group: group.0, rank })?;
    if ranks.len() == 1 {
        return Ok(None);
    }
    let me = ranks.iter().position(|r| *r == rank).unwrap_or(0);
    let id = if me == 0 { library::unique_id() } else { Ok(Vec::new()) };
    let id = id.map_err(|error| watched.error(OperationKind::AllGather, error))?;
    // The id of the first member. The exchange also shows all members that the others are there.
    let missing = || watched.error(OperationKind::AllGather, "the first member sent no id");
    let id = host.all_gather(group, &id)?.into_iter().next().ok_or_else(missing)?;
    let link = watched.add(link::join(host, context, id, ranks.len(), me, GROUP_BLOCKS)?);
    Ok(Some(Member { link, ranks: ranks.clone() }))
}
