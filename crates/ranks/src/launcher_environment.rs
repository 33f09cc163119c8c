//! The rank that a launcher assigned to this process, read from the variables of torchrun, Slurm's srun, and the mpirun of Open MPI, MPICH
//! and Intel MPI.

use runner_spec::error::PlainError;
use std::collections::BTreeMap;
use std::fmt::Display;
use std::net::IpAddr;
use std::ops::Range;

/// The default port of rank 0 under torch's launchers.
const DEFAULT_PORT: u16 = 29_500;

/// Ports that are derived from a job's number. They are below the ports that systems hand out themselves.
const DERIVED_PORTS: Range<u64> = 20_000..32_000;

/// The number of ports that are tried beside one that the launcher itself may listen at.
const ALTERNATIVE_PORTS: u16 = 16;

/// The variable with the number of restarts of ranks that no launcher counts.
pub const RESTARTS: &str = "RUNNER_RESTARTS";

/// Slurm's step numbers from here on are those of batch scripts, interactive shells and the like.
const FIRST_SPECIAL_STEP: u64 = 0xffff_fff1;

/// The program that started the ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Launcher {
    Torchrun,
    /// Another program that sets torchrun's variables. It leaves ranks alone when one of them is lost.
    Variables,
    Slurm,
    OpenMpi,
    /// MPICH's or Intel MPI's.
    Mpich,
}

impl Launcher {
    fn sets_torch_variables(self) -> bool {
        matches!(self, Self::Torchrun | Self::Variables)
    }
}

/// The rank that a launcher assigned to this process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AssignedRank {
    pub rank: usize,
    pub world_size: usize,
    /// The number among the ranks of this machine, which selects the rank's GPU.
    pub local_rank: usize,
    /// The host of rank 0.
    pub leader_host: String,
    /// Rank 0 listens at the first of these that is free.
    pub leader_ports: Vec<u16>,
    /// The name of this machine, where the environment gives it.
    pub host_name: Option<String>,
    pub launcher: Launcher,
    /// The variable that holds the world size.
    pub world_size_variable: &'static str,
    /// The launcher's name for the ranks that it started together. It is not a secret.
    pub job: String,
    /// The secret in `RUNNER_TOKEN`, which only the ranks of this run know.
    pub secret: Option<String>,
    /// True if all ranks are on this machine; false if the environment does not show that.
    pub is_one_machine: bool,
}

/// The variables of an environment.
type Variables = BTreeMap<String, String>;

/// The rank that a launcher assigned to this process; `None` if no launcher did.
///
/// # Errors
/// If there are variables of a launcher that make no sense.
pub fn assigned_rank(variables: &Variables) -> Result<Option<AssignedRank>, PlainError> {
    let env = Env(variables);
    if env.get("RANK").is_some() && env.get("WORLD_SIZE").is_some() {
        return torch(env).map(Some);
    }
    if env.is_slurm_task()? {
        return slurm(env).map(Some);
    }
    if env.get("OMPI_COMM_WORLD_RANK").is_some() && env.get("OMPI_COMM_WORLD_SIZE").is_some() {
        return open_mpi(env).map(Some);
    }
    if env.get("PMI_RANK").is_some() && env.get("PMI_SIZE").is_some() {
        return mpich(env).map(Some);
    }
    let check_absent = |set, name| match env.get(set) {
        Some(value) => Err(missing(set, value, name)),
        None => Ok(()),
    };
    check_absent("RANK", "WORLD_SIZE")?;
    check_absent("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE")?;
    check_absent("PMI_RANK", "PMI_SIZE")?;
    // A rank whose number was lost would train everything alone. WORLD_SIZE alone is set in some containers without a launcher.
    if variables.contains_key("RANK") || env.get("LOCAL_RANK").is_some() {
        check_absent("WORLD_SIZE", "RANK")?;
    }
    Ok(None)
}

/// Like [`assigned_rank`], but `None` for a world of one rank under Slurm or mpirun: an interactive shell has such variables, too, and
/// they are not meant for the commands that it starts.
///
/// # Errors
/// Those of [`assigned_rank`].
pub fn assigned_rank_of_several(variables: &Variables) -> Result<Option<AssignedRank>, PlainError> {
    let is_meant = |assigned: &AssignedRank| assigned.world_size > 1 || assigned.launcher.sets_torch_variables();
    Ok(assigned_rank(variables)?.filter(is_meant))
}

/// The number of times that the ranks of this process's job were restarted before it started. 0 if no launcher counts them.
///
/// # Errors
/// If the variable that gives it is not a number.
pub fn restart_count(variables: &Variables) -> Result<u32, PlainError> {
    for name in [RESTARTS, "TORCHELASTIC_RESTART_COUNT", "SLURM_RESTART_COUNT"] {
        if let Some(count) = Env(variables).number(name, "number of restarts")? {
            return Ok(u32::try_from(count).unwrap_or(u32::MAX));
        }
    }
    Ok(0)
}

fn wrong_value(name: &str, value: &str, expected: &str) -> PlainError {
    PlainError::request(format!("{name} must be a {expected}, got {value:?}"))
}

fn missing(set: &str, value: &str, name: &str) -> PlainError {
    PlainError::request(format!(
        "{set} is {value:?}, but {name} is not set; `--launcher local` ignores these variables"
    ))
}

#[derive(Clone, Copy)]
struct Env<'a>(&'a Variables);

impl<'a> Env<'a> {
    /// The value of a variable. An empty value counts as not set.
    fn get(self, name: &str) -> Option<&'a str> {
        self.0.get(name).map(|value| value.trim()).filter(|value| !value.is_empty())
    }

    fn number(self, name: &'static str, expected: &'static str) -> Result<Option<u64>, PlainError> {
        let Some(value) = self.get(name) else { return Ok(None) };
        value.parse().map(Some).map_err(|_| wrong_value(name, value, expected))
    }

    /// `value`, which the variable `name` must give where the variable `set` is set.
    fn required<T>(self, value: Option<T>, set: &'static str, name: &'static str) -> Result<T, PlainError> {
        value.ok_or_else(|| missing(set, self.get(set).unwrap_or_default(), name))
    }

    /// The rank that the variables with these names give, and the number among the ranks of the machine.
    fn assigned(
        self,
        launcher: Launcher,
        [rank_variable, world_size_variable, local_rank_variable]: [&'static str; 3],
        leader_host: String,
        leader_ports: Vec<u16>,
        job: String,
        is_one_machine: bool,
    ) -> Result<AssignedRank, PlainError> {
        let rank = self.required(self.number(rank_variable, "rank")?, world_size_variable, rank_variable)? as usize;
        let expected = "number of ranks";
        let world_size = self.number(world_size_variable, expected)?;
        let world_size = self.required(world_size, rank_variable, world_size_variable)? as usize;
        if world_size == 0 || world_size > u32::MAX as usize {
            return Err(wrong_value(world_size_variable, &world_size.to_string(), expected));
        }
        if rank >= world_size {
            return Err(PlainError::request(format!(
                "{rank_variable} must be below {world_size_variable}, which is {world_size}, got {rank}; ranks \
                 count from 0"
            )));
        }
        let local_rank = self.number(local_rank_variable, "rank")?.unwrap_or(0) as usize;
        let host_name = self.get("HOSTNAME").map(str::to_owned);
        let is_loopback = leader_host == "localhost" || leader_host.parse().is_ok_and(|ip: IpAddr| ip.is_loopback());
        Ok(AssignedRank {
            rank,
            world_size,
            local_rank,
            leader_host,
            leader_ports,
            host_name,
            launcher,
            world_size_variable,
            job,
            secret: self.get("RUNNER_TOKEN").map(str::to_owned),
            is_one_machine: is_one_machine || is_loopback,
        })
    }

    fn port(self) -> Result<Option<u16>, PlainError> {
        let name = "MASTER_PORT";
        let Some(value) = self.get(name) else { return Ok(None) };
        match value.parse() {
            Ok(port) if port > 0 => Ok(Some(port)),
            _ => Err(wrong_value(name, value, "port")),
        }
    }

    /// The host of rank 0, which MASTER_ADDR must name unless there is one rank.
    fn leader_host(self, rank: &'static str, world_size: &str) -> Result<String, PlainError> {
        let only_rank = (self.get(world_size) == Some("1")).then_some("localhost");
        Ok(self.required(self.get("MASTER_ADDR").or(only_rank), rank, "MASTER_ADDR")?.to_owned())
    }

    /// True if this process is a task of a step that srun started, not a batch script or the shell of an allocation.
    fn is_slurm_task(self) -> Result<bool, PlainError> {
        let step = self.number("SLURM_STEP_ID", "step")?;
        Ok(self.get("SLURM_PROCID").is_some() && step.is_some_and(|step| step < FIRST_SPECIAL_STEP))
    }

    /// The name of a job: the launcher's name, and the launcher's variables `own`.
    fn job(self, launcher: &str, own: &[&str]) -> String {
        let variables = own.iter().map(|name| self.get(name).unwrap_or_default());
        [launcher].into_iter().chain(variables).collect::<Vec<_>>().join("\n")
    }

    /// True if both variables are set, to the same value.
    fn are_equal(self, names: [&str; 2]) -> bool {
        let [one, other] = names.map(|name| self.get(name));
        one.is_some() && one == other
    }
}

fn torch(env: Env<'_>) -> Result<AssignedRank, PlainError> {
    let host = env.leader_host("RANK", "WORLD_SIZE");
    let port = env.port()?.unwrap_or(DEFAULT_PORT);
    // torchrun's own store listens at the port in the variable.
    let is_shared = env.get("TORCHELASTIC_USE_AGENT_STORE").is_some_and(|value| value.eq_ignore_ascii_case("true"));
    let ports = if is_shared { alternative_ports(port) } else { vec![port] };
    let job = env.job("torch", &["TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT"]);
    let is_one_machine = env.are_equal(["LOCAL_WORLD_SIZE", "WORLD_SIZE"]);
    let variables = ["RANK", "WORLD_SIZE", "LOCAL_RANK"];
    let is_torchrun = env.get("TORCHELASTIC_RUN_ID").is_some();
    let launcher = if is_torchrun { Launcher::Torchrun } else { Launcher::Variables };
    env.assigned(launcher, variables, host?, ports, job, is_one_machine)
}

/// The ports after `port`, or before it where there are too few.
fn alternative_ports(port: u16) -> Vec<u16> {
    let first = if port > u16::MAX - ALTERNATIVE_PORTS { port - ALTERNATIVE_PORTS } else { port + 1 };
    (first..=first + (ALTERNATIVE_PORTS - 1)).collect()
}

fn slurm(env: Env<'_>) -> Result<AssignedRank, PlainError> {
    // A step may have fewer tasks than the job.
    let is_in_step = env.get("SLURM_STEP_NUM_TASKS").is_some();
    let world_size = if is_in_step { "SLURM_STEP_NUM_TASKS" } else { "SLURM_NTASKS" };
    let job = env.number("SLURM_JOB_ID", "job")?.unwrap_or(0);
    let step = env.number("SLURM_STEP_ID", "step")?.unwrap_or(0);
    let count = DERIVED_PORTS.end - DERIVED_PORTS.start;
    let derived = DERIVED_PORTS.start + job.wrapping_add(step.wrapping_mul(101)) % count;
    let ports = vec![env.port()?.unwrap_or(derived as u16)];
    let host = match env.get("MASTER_ADDR") {
        Some(host) => host.to_owned(),
        None if env.get(world_size) == Some("1") => "localhost".to_owned(),
        None => first_node(env)?,
    };
    let job_name = env.job("slurm", &["SLURM_JOB_ID", "SLURM_STEP_ID"]);
    let nodes = env.get("SLURM_STEP_NUM_NODES").or(env.get("SLURM_JOB_NUM_NODES")).or(env.get("SLURM_NNODES"));
    let variables = ["SLURM_PROCID", world_size, "SLURM_LOCALID"];
    env.assigned(Launcher::Slurm, variables, host, ports, job_name, nodes == Some("1"))
}

/// The machine of task 0: the first of the step, in all distributions but arbitrary ones.
fn first_node(env: Env<'_>) -> Result<String, PlainError> {
    for name in ["SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST"] {
        if let Some(value) = env.get(name) {
            let problem = || {
                PlainError::request(format!(
                    "{name} must start with the name of a machine, got {value:?}; set \
                    `MASTER_ADDR`"
                ))
            };
            return first_host(value).ok_or_else(problem);
        }
    }
    let launched_from = env.get("SLURM_LAUNCH_NODE_IPADDR");
    Ok(env.required(launched_from, "SLURM_PROCID", "SLURM_STEP_NODELIST")?.to_owned())
}

/// The first host of a list: `node03` of `node[03-05,7],other`. Brackets may come several times, as in `rack[1-2]node[01-04]`.
fn first_host(list: &str) -> Option<String> {
    let mut host = String::new();
    let mut rest = list;
    loop {
        let end = rest.find(['[', ',']).unwrap_or(rest.len());
        host.push_str(&rest[..end]);
        if !rest[end..].starts_with('[') {
            break;
        }
        let (inside, after) = rest[end + 1..].split_once(']')?;
        let first = inside.split(['-', ',']).next()?;
        if first.is_empty() || !first.bytes().all(|b| b.is_ascii_digit()) {
            return None;
        }
        host.push_str(first);
        rest = after;
    }
    let is_legal = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_');
    (!host.is_empty() && host.chars().all(is_legal)).then_some(host)
}

fn open_mpi(env: Env<'_>) -> Result<AssignedRank, PlainError> {
    let variables = ["OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"];
    let job = env.job("mpi", &["PMIX_NAMESPACE"]);
    mpirun(env, Launcher::OpenMpi, variables, "OMPI_COMM_WORLD_LOCAL_SIZE", job)
}

fn mpich(env: Env<'_>) -> Result<AssignedRank, PlainError> {
    let variables = ["PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"];
    // Hydra has no variable with a name for the job.
    mpirun(env, Launcher::Mpich, variables, "MPI_LOCALNRANKS", env.job("mpich", &[]))
}

/// A rank of an mpirun. Rank 0 of several machines is at MASTER_ADDR.
fn mpirun(
    env: Env<'_>,
    launcher: Launcher,
    variables: [&'static str; 3],
    local_size: &'static str,
    job: String,
) -> Result<AssignedRank, PlainError> {
    let [rank, world_size, _] = variables;
    let is_one_machine = env.are_equal([local_size, world_size]);
    let host = match env.get("MASTER_ADDR") {
        None if is_one_machine => "localhost".to_owned(),
        _ => env.leader_host(rank, world_size)?,
    };
    let ports = vec![env.port()?.unwrap_or(DEFAULT_PORT)];
    env.assigned(launcher, variables, host, ports, job, is_one_machine)
}

impl AssignedRank {
    /// The problem if a plan has another number of ranks. `layout` describes the plan's, such as `ddp: 4 replicas`.
    pub fn world_size_problem(&self, ranks: usize, layout: &dyn Display) -> Option<String> {
        if ranks == self.world_size {
            return None;
        }
        let Self { world_size_variable, world_size, .. } = self;
        let word = if ranks == 1 { "rank" } else { "ranks" };
        let hint = "start that many processes, or one with `--launcher local`, which starts the ranks itself";
        Some(format!("{world_size_variable} is {world_size}, but the plan has {ranks} {word} ({layout}); {hint}"))
    }
}

#[cfg(test)]
mod tests;
