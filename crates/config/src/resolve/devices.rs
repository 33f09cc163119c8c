//! The list of devices under `parallel`: a legal one for each rank.

use std::collections::HashMap;

use crate::resolve::parallel::{REPLICAS, RawMesh, STAGES};
use crate::resolve::resolver::Resolver;
use runner_spec::experiment::{AutoOr, DeviceChoice};
use runner_spec::format::choice_name;
use runner_spec::program::Device;

const DEVICES: &str = "parallel.devices";

impl Resolver<'_> {
    /// The list of devices: names, one for each rank, of one kind. Threads of one process each
    /// have a separate GPU; other ranks may be on several machines, or be allowed to share: the plan checks that.
    pub(crate) fn devices(
        &mut self,
        raw: &AutoOr<Vec<String>>,
        grid: Option<RawMesh<'_>>,
        device: DeviceChoice,
        threads: bool,
    ) -> Option<AutoOr<Vec<Device>>> {
        let AutoOr::Given(names) = raw else { return Some(AutoOr::Auto) };
        let mut devices = Vec::with_capacity(names.len());
        for (rank, text) in names.iter().enumerate() {
            match text.parse::<Device>() {
                Ok(device) => devices.push(device),
                Err(error) => {
                    self.error(&[&format!("{DEVICES}.{rank}")], error.text, "write `cpu`, or `cuda:` and a number");
                }
            }
        }
        if devices.len() < names.len() {
            return None;
        }
        let mut seen = HashMap::new();
        for (rank, &name) in devices.iter().enumerate() {
            let at = format!("{DEVICES}.{rank}");
            let first = devices[0];
            if matches!(name, Device::Cpu) != matches!(first, Device::Cpu) {
                let message = format!("the ranks of a run must be all CPUs or all GPUs, got `{first}` and `{name}`");
                return self.refuse(&[&at], message, "list devices of one kind");
            }
            if threads
                && matches!(name, Device::Cuda(_))
                && let Some(other) = seen.insert(name, rank)
            {
                let message = format!("`{name}` is listed twice, for ranks {other} and {rank}");
                return self.refuse(&[&at], message, "list a different GPU for each rank");
            }
        }
        let cuda = devices.first().is_some_and(|d| matches!(d, Device::Cuda(_)));
        let (other, kind) = if cuda { (DeviceChoice::Cpu, "GPUs") } else { (DeviceChoice::Cuda, "CPUs") };
        if device == other && !devices.is_empty() {
            self.error(
                &[DEVICES, "device"],
                format!("`device` is `{}`, but `parallel.devices` lists {kind}", choice_name(&device)),
                "delete one of the two",
            );
        }
        let grid = grid?;
        let ranks = grid.ranks();
        if devices.len() != ranks {
            self.error(
                &[DEVICES, REPLICAS, STAGES],
                format!("{}, but `parallel.devices` lists {}", grid.arithmetic(), devices.len()),
                "list one for each rank, or write `auto`",
            );
        }
        Some(AutoOr::Given(devices))
    }
}
