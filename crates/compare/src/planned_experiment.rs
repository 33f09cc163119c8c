//! An experiment with the facts of its plan, compiled by this version of the program.

use runner_plan::{PlanError, compile};
use runner_spec::cluster::{ClusterFacts, DeviceFacts};
use runner_spec::data::DataFacts;
use runner_spec::experiment::{AutoOr, DeviceChoice, Experiment, Precision, Seeds};
use runner_spec::plan::Plan;
use runner_spec::program::Device;

/// An experiment and its plan.
#[derive(Debug, Clone)]
pub struct PlannedExperiment {
    pub experiment: Experiment,
    pub data: DataFacts,
    pub cluster: ClusterFacts,
    pub plan: Plan,
    /// The plan of the actual computation, if it differs from what the experiment asks for.
    effective: Option<Plan>,
}

impl PlannedExperiment {
    /// # Errors
    /// If experiment, data and devices do not fit one another.
    pub fn new(experiment: Experiment, data: DataFacts, cluster: ClusterFacts) -> Result<Self, PlanError> {
        let plan = compile(&experiment, &data, &cluster)?;
        let is_fp32 =
            experiment.precision == Precision::Tf32 && plan.ranks.iter().all(|rank| rank.device == Device::Cpu);
        let fp32 = || Experiment { precision: Precision::Fp32, ..experiment.clone() };
        let effective = is_fp32.then(|| compile(&fp32(), &data, &cluster)).transpose()?;
        Ok(Self { experiment, data, cluster, plan, effective })
    }

    /// The plan of the actual computation. It differs from `plan` if the devices lack what the experiment asks for: tf32 on a CPU is fp32.
    #[must_use]
    pub fn effective(&self) -> &Plan {
        self.effective.as_ref().unwrap_or(&self.plan)
    }
}

/// The hash of the mathematics of `experiment` without its seed. Experiments with the same one differ in their seed, in rounding, in what is
/// measured and in what is recorded: they are runs of one setting.
///
/// # Errors
/// If experiment, data and devices do not fit one another.
pub fn mathematics_of_setting(
    experiment: &Experiment,
    data: &DataFacts,
    cluster: &ClusterFacts,
) -> Result<String, PlanError> {
    let mut seedless = experiment.clone();
    seedless.seed = Seeds::from(0);
    let planned = PlannedExperiment::new(seedless, data.clone(), cluster.clone())?;
    Ok(planned.effective().math_hash.clone())
}

/// The devices that `plan` was made for: one for each rank, but a CPU once. Their rates do not change the plan's hash.
#[must_use]
pub fn cluster_of(plan: &Plan) -> ClusterFacts {
    let mut devices: Vec<DeviceFacts> = Vec::new();
    for rank in &plan.ranks {
        let (node, device) = (rank.hardware.node, rank.hardware.device);
        let known = |d: &DeviceFacts| device == Device::Cpu && (d.node, d.device) == (node, device);
        if !devices.iter().any(known) {
            devices.push(rank.hardware.clone());
        }
    }
    ClusterFacts { devices, sharing: true, ..ClusterFacts::default() }
}

/// `local` and the GPUs that one of `experiments` names, even if the machine does not have them: a comparison needs none. Experiments that
/// are compared are planned for the same devices, so `device: auto` stands for the same ones in all of them.
#[must_use]
pub fn cluster_for(experiments: &[&Experiment], local: ClusterFacts) -> ClusterFacts {
    /// The largest number of GPUs that are listed.
    const MAX_GPUS: usize = 1 << 16;
    let named = |experiment: &&Experiment| {
        let parallel = &experiment.parallel;
        let names: &[Device] = match &parallel.devices {
            AutoOr::Given(names) => names,
            AutoOr::Auto => &[],
        };
        let named = names.iter().filter_map(|name| match name {
            Device::Cuda(index) => Some(index.saturating_add(1)),
            Device::Cpu => None,
        });
        let stages = parallel.pipeline.as_ref().map_or(1, |p| p.stages);
        let asked = if experiment.device == DeviceChoice::Cuda { stages.saturating_mul(parallel.replicas) } else { 0 };
        named.max().unwrap_or(0).max(asked)
    };
    let count = experiments.iter().map(named).max().unwrap_or(0).min(MAX_GPUS);
    let mut cluster = ClusterFacts { sharing: true, no_nccl: None, ..local };
    for device in (0..count).map(Device::Cuda) {
        if cluster.devices.iter().all(|d| d.device != device) {
            cluster.devices.push(DeviceFacts::unmeasured(device, "a GPU".to_owned(), 1));
        }
    }
    cluster
}
