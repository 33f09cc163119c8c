//! Tests of ranks on one machine, by topic.

mod failures;
mod processes;
mod speed;

use std::sync::Arc;

use super::{LocalComm, Region};
use crate::host_comm::HostTransport;
use crate::rank_status::RankStatus;

impl LocalComm {
    pub(super) fn region(&self) -> &Arc<Region> {
        &self.own.transport.region
    }

    pub(super) fn status(&self) -> &RankStatus {
        self.own.transport.status()
    }
}
