//! The links of groups that transfer tensors. They are made and used once at the start, because NCCL allocates memory at both.

use std::collections::HashMap;
use std::sync::Arc;

use candle_core::DType;
use cudarc::driver::CudaContext;

use super::library::{self, Transfer};
use super::link::{self, Link, place};
use super::watch::Watched;
use crate::error::{CommError, OperationKind};
use runner_compute::gpu::Gpu;
use runner_spec::topology::{GroupId, Topology};

/// The lengths of the first sums, in f32: NCCL connects members again for each of its algorithms, which it chooses by length.
const FIRST_SUM_LENGTHS: [usize; 2] = [1, 1 << 20];

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
    let mut members = HashMap::new();
    for &group in groups {
        let member = join(watched, topology, gpu.stream().context(), group)?;
        for count in FIRST_SUM_LENGTHS {
            let Some(member) = &member else { break };
            let kind = OperationKind::Connect;
            // It lives until the compute stream waits for the sum.
            let tensor = gpu.zeros(DType::F32, count)?;
            let places = [place(&tensor)?];
            let started = member.link.start(kind, gpu.stream(), None, Transfer::AllReduce, &places);
            let completed = started.map_err(|error| watched.error(kind, error))?;
            // The wait belongs to no step, so it is not measured.
            gpu.stream().wait(&completed).map_err(|error| watched.error(kind, error))?;
        }
        members.insert(group, member);
    }
    Ok(members)
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
    let link = watched.add(link::join(host, context, id, ranks.len(), me)?);
    Ok(Some(Member { link, ranks: ranks.clone() }))
}
