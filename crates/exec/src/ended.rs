//! Whether the run has ended around a rank: numbers that it has received since then are not another's, and blame nobody.

use super::error::ExecError;
use super::rank::Rank;

impl Rank<'_> {
    /// To be asked before a number that is not finite is blamed: transfers that were cut short leave what was in memory.
    ///
    /// # Errors
    /// What ended the run, if it has ended.
    pub(super) fn still_running(&self) -> Result<(), ExecError> {
        Ok(self.links.comm.alive()?)
    }
}
