//! Decides which runs may work at the same time: up to a limit, within the memory, each with its own CUDA devices.

use std::collections::BTreeMap;

/// The resources that one run needs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct ResourceNeed {
    /// Host memory in bytes.
    pub memory: u64,
    /// The number of CUDA devices, which no other run may use.
    pub devices: usize,
}

/// The resources of the machine, and the runs that have them.
#[derive(Debug)]
pub(super) struct ResourceAllocator {
    max_runs: usize,
    /// Memory in bytes; `None`: unknown, so it does not limit.
    memory: Option<u64>,
    /// The free devices, as `CUDA_VISIBLE_DEVICES` names them, in the order of `devices`.
    free: Vec<String>,
    devices: Vec<String>,
    taken: BTreeMap<usize, (ResourceNeed, Vec<String>)>,
}

impl ResourceAllocator {
    /// At most `max_runs` runs (at least one), in `memory` bytes, on `devices`.
    pub(super) fn new(max_runs: usize, memory: Option<u64>, devices: Vec<String>) -> Self {
        Self { max_runs: max_runs.max(1), memory, free: devices.clone(), devices, taken: BTreeMap::new() }
    }

    /// Takes what the run `id` needs, and returns its devices; `None` if that is not free. A run that needs more than the machine has
    /// is started alone, because waiting would not help.
    pub(super) fn take(&mut self, id: usize, need: ResourceNeed) -> Option<Vec<String>> {
        if self.is_full() || self.taken.contains_key(&id) {
            return None;
        }
        let used: u64 = self.taken.values().map(|(need, _)| need.memory).fold(0, u64::saturating_add);
        let fits = self.memory.is_none_or(|memory| used.saturating_add(need.memory) <= memory);
        if !(fits && need.devices <= self.free.len() || self.taken.is_empty()) {
            return None;
        }
        let devices: Vec<String> = self.free.drain(..need.devices.min(self.free.len())).collect();
        self.taken.insert(id, (need, devices.clone()));
        Some(devices)
    }

    /// Frees the resources of the run `id`.
    pub(super) fn give_back(&mut self, id: usize) {
        if let Some((_, devices)) = self.taken.remove(&id) {
            self.free.extend(devices);
            // Devices keep the original order, so that a repeated point gets the same device.
            self.free.sort_by_key(|device| self.devices.iter().position(|d| d == device));
        }
    }

    /// True if no further run may start.
    pub(super) fn is_full(&self) -> bool {
        self.taken.len() >= self.max_runs
    }
}

/// The names of the CUDA devices that points may use: of the `count` devices of this machine, those that `variable`, the value of
/// `CUDA_VISIBLE_DEVICES`, lets this process see.
pub(super) fn visible_devices(count: usize, variable: Option<&str>) -> Vec<String> {
    match variable {
        Some(names) => {
            names.split(',').map(str::trim).filter(|n| !n.is_empty()).take(count).map(str::to_owned).collect()
        }
        None => (0..count).map(|i| i.to_string()).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    fn memory(gib: u64) -> ResourceNeed {
        ResourceNeed { memory: gib * GIB, devices: 0 }
    }

    fn names(names: &[&str]) -> Vec<String> {
        names.iter().map(|&n| n.to_owned()).collect()
    }

    #[test]
    fn no_more_runs_start_than_allowed() {
        let mut machine = ResourceAllocator::new(2, None, Vec::new());
        assert!(machine.take(1, memory(1)).is_some() && machine.take(2, memory(1_000_000)).is_some());
        assert!(machine.take(3, memory(0)).is_none());
        machine.give_back(1);
        assert!(machine.take(2, memory(0)).is_none(), "it has its part");
        assert!(machine.take(3, memory(0)).is_some());
        assert!(machine.is_full());
        let mut none = ResourceAllocator::new(0, None, Vec::new());
        assert!(none.take(1, memory(1)).is_some(), "at least one");
    }

    #[test]
    fn memory_is_shared() {
        let mut machine = ResourceAllocator::new(9, Some(10 * GIB), Vec::new());
        assert!(machine.take(1, memory(6)).is_some());
        assert!(machine.take(2, memory(5)).is_none());
        assert!(machine.take(3, memory(4)).is_some(), "a smaller one goes ahead");
        machine.give_back(1);
        assert!(machine.take(2, memory(5)).is_some());
        assert!(machine.take(4, ResourceNeed { memory: u64::MAX, devices: 0 }).is_none());
    }

    #[test]
    fn a_run_that_never_fits_runs_alone() {
        let mut machine = ResourceAllocator::new(2, Some(GIB), Vec::new());
        assert!(machine.take(1, memory(5)).is_some());
        assert!(machine.take(2, memory(0)).is_none(), "nothing beside it");
    }

    #[test]
    fn devices_are_disjoint_and_come_back() {
        let two = ResourceNeed { memory: 0, devices: 2 };
        let mut machine = ResourceAllocator::new(9, None, names(&["3", "1", "GPU-a", "0", "2"]));
        assert_eq!(machine.take(1, two), Some(names(&["3", "1"])));
        assert_eq!(machine.take(2, two), Some(names(&["GPU-a", "0"])));
        assert_eq!(machine.take(3, two), None);
        assert_eq!(machine.take(4, ResourceNeed { memory: 0, devices: 1 }), Some(names(&["2"])));
        machine.give_back(2);
        machine.give_back(1);
        machine.give_back(1);
        assert_eq!(machine.take(5, two), Some(names(&["3", "1"])), "in their order");
    }

    #[test]
    fn points_use_only_the_devices_that_are_visible() {
        assert_eq!(visible_devices(3, None), ["0", "1", "2"]);
        assert_eq!(visible_devices(2, Some("3, GPU-a")), ["3", "GPU-a"]);
        assert!(visible_devices(0, Some("")).is_empty() && visible_devices(0, None).is_empty());
    }
}
