//! The place among others that a launcher gave this process: what torchrun, Slurm's srun and OpenMPI's mpirun say in variables.

use std::collections::BTreeMap;
use std::fmt::Display;

/// Where torch's launchers have rank 0 listen, unless they say.
const PORT: u16 = 29_500;

/// Ports that are derived from a job's number: below those that systems give out themselves.
const DERIVED: std::ops::Range<u64> = 20_000..32_000;

/// How many ports are tried beside one that a launcher itself may listen at.
const BESIDE: u16 = 16;

/// Steps of Slurm beyond these are no steps of tasks, but a batch script, an interactive shell and the like.
const LAST_STEP: u64 = 0xffff_fff0;

/// Who started the ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Launcher {
    /// torchrun, or whoever sets its variables.
    Torch,
    Slurm,
    OpenMpi,
}

/// A process's place among the ranks of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seat {
    pub rank: usize,
    pub world_size: usize,
    /// Among those of this machine: which GPU is this rank's.
    pub local_rank: usize,
    /// Where rank 0 is.
    pub master: Master,
    pub launcher: Launcher,
    /// The variable that says how many ranks there are.
    pub counted_by: &'static str,
    /// What only the ranks of this run know.
    pub token: String,
}

/// Where rank 0 listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Master {
    pub host: String,
    /// The first of these that is free.
    pub ports: Vec<u16>,
}

/// Variables that make no sense.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EnvironmentError {
    #[error("{name} is {value:?}, which is no {expected}")]
    Number { name: &'static str, value: String, expected: &'static str },
    #[error("{set} is {value:?}, but {name} is not set; --launcher local takes no notice of them")]
    Missing { set: &'static str, value: String, name: &'static str },
    #[error("{rank} is {value}, but {world} is {world_size}: ranks count from 0")]
    Beyond { rank: &'static str, value: usize, world: &'static str, world_size: usize },
    #[error("{name} is {value:?}, in which there is no first machine: set MASTER_ADDR")]
    Nodes { name: &'static str, value: String },
    #[error("--launcher env: neither RANK and WORLD_SIZE nor the variables of a Slurm step or of mpirun are set")]
    None,
}

/// The variables of an environment.
type Variables = BTreeMap<String, String>;

/// The place that the environment gives this process; `None` if it gives none.
///
/// # Errors
/// Variables that are there, and make no sense.
pub fn seat(variables: &Variables) -> Result<Option<Seat>, EnvironmentError> {
    let env = Env(variables);
    if env.get("RANK").is_some() && env.get("WORLD_SIZE").is_some() {
        return torch(env).map(Some);
    }
    if env.in_a_step()? {
        return slurm(env).map(Some);
    }
    if env.get("OMPI_COMM_WORLD_RANK").is_some() && env.get("OMPI_COMM_WORLD_SIZE").is_some() {
        return open_mpi(env).map(Some);
    }
    let one = |set, name| match env.get(set) {
        Some(value) => Err(EnvironmentError::Missing { set, value: value.to_owned(), name }),
        None => Ok(()),
    };
    one("RANK", "WORLD_SIZE")?;
    one("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE")?;
    // A rank whose number was lost would train everything by itself. WORLD_SIZE alone is in some containers for no launcher.
    if variables.contains_key("RANK") || env.get("LOCAL_RANK").is_some() {
        one("WORLD_SIZE", "RANK")?;
    }
    Ok(None)
}

/// As `seat`, of which the places of one process are none: of Slurm's and mpirun's, as an interactive shell or a script has one
/// that is not meant for its commands.
///
/// # Errors
/// As `seat`.
pub fn seat_of_several(variables: &Variables) -> Result<Option<Seat>, EnvironmentError> {
    let meant = |seat: &Seat| seat.world_size > 1 || seat.launcher == Launcher::Torch;
    Ok(seat(variables)?.filter(meant))
}

#[derive(Clone, Copy)]
struct Env<'a>(&'a Variables);

impl<'a> Env<'a> {
    /// What is set to nothing is not set.
    fn get(self, name: &str) -> Option<&'a str> {
        self.0.get(name).map(|value| value.trim()).filter(|value| !value.is_empty())
    }

    fn number(self, name: &'static str, expected: &'static str) -> Result<Option<u64>, EnvironmentError> {
        let Some(value) = self.get(name) else { return Ok(None) };
        let wrong = |_| EnvironmentError::Number { name, value: value.to_owned(), expected };
        value.parse().map(Some).map_err(wrong)
    }

    fn rank(self, name: &'static str) -> Result<Option<usize>, EnvironmentError> {
        Ok(self.number(name, "rank")?.map(|rank| rank as usize))
    }

    /// What must be there where `set` is.
    fn required<T>(self, value: Option<T>, set: &'static str, name: &'static str) -> Result<T, EnvironmentError> {
        let shown = self.get(set).unwrap_or_default().to_owned();
        value.ok_or(EnvironmentError::Missing { set, value: shown, name })
    }

    /// Rank and size, as two variables say them.
    fn place(self, rank: &'static str, world: &'static str) -> Result<(usize, usize), EnvironmentError> {
        let value = self.required(self.rank(rank)?, world, rank)?;
        let size = self.number(world, "number of ranks")?;
        let world_size = self.required(size, rank, world)? as usize;
        if world_size == 0 || world_size > u32::MAX as usize {
            let value = self.get(world).unwrap_or_default().to_owned();
            return Err(EnvironmentError::Number { name: world, value, expected: "number of ranks" });
        }
        if value >= world_size {
            return Err(EnvironmentError::Beyond { rank, value, world, world_size });
        }
        Ok((value, world_size))
    }

    fn port(self) -> Result<Option<u16>, EnvironmentError> {
        let name = "MASTER_PORT";
        let Some(value) = self.get(name) else { return Ok(None) };
        match value.parse() {
            Ok(port) if port > 0 => Ok(Some(port)),
            _ => Err(EnvironmentError::Number { name, value: value.to_owned(), expected: "port" }),
        }
    }

    /// Whether this is a task of a step that srun started: not a batch script, nor the shell of an allocation.
    fn in_a_step(self) -> Result<bool, EnvironmentError> {
        let step = self.number("SLURM_STEP_ID", "step")?;
        Ok(self.get("SLURM_PROCID").is_some() && step.is_some_and(|step| step < LAST_STEP))
    }

    /// `RUNNER_TOKEN`, where it is set, and what the launcher has of its own.
    fn token(self, launcher: &str, own: &[&str]) -> String {
        let own = own.iter().map(|name| self.get(name).unwrap_or_default());
        let parts: Vec<&str> =
            [launcher, self.get("RUNNER_TOKEN").unwrap_or_default()].into_iter().chain(own).collect();
        parts.join("\n")
    }
}

fn torch(env: Env<'_>) -> Result<Seat, EnvironmentError> {
    let (rank, world_size) = env.place("RANK", "WORLD_SIZE")?;
    let local_rank = env.rank("LOCAL_RANK")?.unwrap_or(0);
    let alone = (world_size == 1).then_some("localhost");
    let host = env.required(env.get("MASTER_ADDR").or(alone), "RANK", "MASTER_ADDR")?.to_owned();
    let port = env.port()?.unwrap_or(PORT);
    // torchrun's own store listens at the port that it tells.
    let shared = env.get("TORCHELASTIC_USE_AGENT_STORE").is_some_and(|value| value.eq_ignore_ascii_case("true"));
    let ports = if shared { beside(port) } else { vec![port] };
    let token = env.token("torch", &["TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT"]);
    let master = Master { host, ports };
    Ok(Seat { rank, world_size, local_rank, master, launcher: Launcher::Torch, counted_by: "WORLD_SIZE", token })
}

/// The ports after `port`; before it where there are none.
fn beside(port: u16) -> Vec<u16> {
    let first = if port > u16::MAX - BESIDE { port - BESIDE } else { port + 1 };
    (first..first + BESIDE).filter(|other| *other != port).collect()
}

fn slurm(env: Env<'_>) -> Result<Seat, EnvironmentError> {
    // A step may have fewer tasks than the job.
    let in_step = env.get("SLURM_STEP_NUM_TASKS").is_some();
    let counted_by = if in_step { "SLURM_STEP_NUM_TASKS" } else { "SLURM_NTASKS" };
    let (rank, world_size) = env.place("SLURM_PROCID", counted_by)?;
    let local_rank = env.rank("SLURM_LOCALID")?.unwrap_or(0);
    let job = env.number("SLURM_JOB_ID", "job")?.unwrap_or(0);
    let step = env.number("SLURM_STEP_ID", "step")?.unwrap_or(0);
    let derived = DERIVED.start + job.wrapping_add(step.wrapping_mul(101)) % (DERIVED.end - DERIVED.start);
    let port = env.port()?.unwrap_or(derived as u16);
    let host = match env.get("MASTER_ADDR") {
        Some(host) => host.to_owned(),
        // Nobody to meet.
        None if world_size == 1 => "localhost".to_owned(),
        None => first_node(env)?,
    };
    let token = env.token("slurm", &["SLURM_JOB_ID", "SLURM_STEP_ID"]);
    let master = Master { host, ports: vec![port] };
    Ok(Seat { rank, world_size, local_rank, master, launcher: Launcher::Slurm, counted_by, token })
}

/// The machine of task 0: the first of the step, in all distributions but arbitrary ones.
fn first_node(env: Env<'_>) -> Result<String, EnvironmentError> {
    for name in ["SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST"] {
        if let Some(value) = env.get(name) {
            return first_host(value).ok_or(EnvironmentError::Nodes { name, value: value.to_owned() });
        }
    }
    let launched_from = env.get("SLURM_LAUNCH_NODE_IPADDR");
    Ok(env.required(launched_from, "SLURM_PROCID", "SLURM_STEP_NODELIST")?.to_owned())
}

/// Of `node[03-05,7],other` `node03`; brackets may come several times, as in `rack[1-2]node[01-04]`.
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
    let name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_');
    (!host.is_empty() && host.chars().all(name)).then_some(host)
}

fn open_mpi(env: Env<'_>) -> Result<Seat, EnvironmentError> {
    let (rank, world_size) = env.place("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE")?;
    let local_rank = env.rank("OMPI_COMM_WORLD_LOCAL_RANK")?.unwrap_or(0);
    let alone = (world_size == 1).then_some("localhost");
    let host = env.required(env.get("MASTER_ADDR").or(alone), "OMPI_COMM_WORLD_RANK", "MASTER_ADDR")?.to_owned();
    let master = Master { host, ports: vec![env.port()?.unwrap_or(PORT)] };
    let token = env.token("mpi", &["PMIX_NAMESPACE"]);
    let counted_by = "OMPI_COMM_WORLD_SIZE";
    Ok(Seat { rank, world_size, local_rank, master, launcher: Launcher::OpenMpi, counted_by, token })
}

impl Seat {
    /// The token as ranks show it to each other.
    #[must_use]
    pub fn token_hash(&self) -> [u8; 32] {
        *blake3::hash(self.token.as_bytes()).as_bytes()
    }

    /// What is wrong if the plan has another number of ranks; `layout` as in `ddp: 4 replicas`.
    #[must_use]
    pub fn mismatch(&self, ranks: usize, layout: &dyn Display) -> Option<String> {
        if ranks == self.world_size {
            return None;
        }
        let Self { counted_by, world_size, .. } = self;
        let word = if ranks == 1 { "rank" } else { "ranks" };
        let hint = "start as many processes, or one with --launcher local, which starts the ranks itself";
        Some(format!("{counted_by} is {world_size}, and the plan has {ranks} {word} ({layout}): {hint}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> Result<Option<Seat>, EnvironmentError> {
        let pairs = text.split_whitespace().map(|pair| pair.split_once('=').unwrap());
        seat(&pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect())
    }

    fn place(text: &str) -> (usize, usize, usize, String, Vec<u16>) {
        let Seat { rank, world_size, local_rank, master: Master { host, ports }, .. } = of(text).unwrap().unwrap();
        (rank, world_size, local_rank, host, ports)
    }

    #[test]
    fn torchs_variables() {
        let all = "RANK=3 WORLD_SIZE=8 LOCAL_RANK=1 MASTER_ADDR=node-1 MASTER_PORT=1234";
        assert_eq!(place(all), (3, 8, 1, "node-1".into(), vec![1234]));
        assert_eq!(place("RANK=0 WORLD_SIZE=2 MASTER_ADDR=a").4, [29500]);
        let (.., ports) = place(&format!("{all} TORCHELASTIC_USE_AGENT_STORE=True"));
        assert_eq!((ports[0], ports.len()), (1235, 16), "not the one where torchrun itself listens");
        let (.., ports) =
            place("RANK=0 WORLD_SIZE=2 MASTER_ADDR=a MASTER_PORT=65535 TORCHELASTIC_USE_AGENT_STORE=True");
        assert!(ports.len() >= 15 && !ports.contains(&65535), "{ports:?}");
        assert_eq!(place("RANK=0 WORLD_SIZE=1").3, "localhost", "nobody to meet");
        // A job array's or a cluster's own variables beside them say nothing more.
        assert_eq!(place(&format!("{all} SLURM_PROCID=5 SLURM_STEP_ID=0 SLURM_NTASKS=9")).0, 3);
    }

    #[test]
    fn slurms_variables() {
        let step = "SLURM_PROCID=5 SLURM_NTASKS=16 SLURM_LOCALID=1 SLURM_JOB_ID=1234567 SLURM_STEP_ID=2 \
                    SLURM_JOB_NODELIST=gpu[07-10,12]";
        let (rank, world_size, local_rank, host, ports) = place(step);
        assert_eq!((rank, world_size, local_rank, host.as_str()), (5, 16, 1, "gpu07"));
        assert!((20_000..32_000).contains(&ports[0]), "{ports:?}");
        assert_ne!(ports, place(&step.replace("1234567", "1234568")).4, "jobs side by side");
        assert_eq!(place(&format!("{step} SLURM_STEP_NUM_TASKS=8")).1, 8, "of the step, not the job");
        assert_eq!(place(&format!("{step} SLURM_STEP_NODELIST=gpu09")).3, "gpu09");
        let (.., host, ports) = place(&format!("{step} MASTER_ADDR=10.0.0.1 MASTER_PORT=5"));
        assert_eq!((host.as_str(), ports), ("10.0.0.1", vec![5]));
        let ip = "SLURM_PROCID=0 SLURM_NTASKS=2 SLURM_STEP_ID=0 SLURM_LAUNCH_NODE_IPADDR=10.1.1.1";
        assert_eq!(place(ip).3, "10.1.1.1");
    }

    /// A batch script and the shell of an allocation have tasks to start, and are none.
    #[test]
    fn a_shell_in_an_allocation_is_no_rank() {
        assert_eq!(of("SLURM_JOB_ID=7 SLURM_NTASKS=8 SLURM_JOB_NODELIST=a").unwrap(), None, "salloc");
        assert_eq!(of("SLURM_JOB_ID=7 SLURM_NTASKS=8 SLURM_PROCID=0 SLURM_LOCALID=0").unwrap(), None, "sbatch");
        let interactive = "SLURM_JOB_ID=7 SLURM_NTASKS=8 SLURM_PROCID=0 SLURM_STEP_ID=4294967290";
        assert_eq!(of(interactive).unwrap(), None);
        let variables = |text: &str| -> Variables {
            text.split_whitespace().map(|p| p.split_once('=').unwrap()).map(|(a, b)| (a.into(), b.into())).collect()
        };
        let one = "SLURM_PROCID=0 SLURM_NTASKS=1 SLURM_STEP_ID=0 SLURM_JOB_NODELIST=a";
        assert!(seat(&variables(one)).unwrap().is_some());
        assert_eq!(seat_of_several(&variables(one)).unwrap(), None);
        assert!(seat_of_several(&variables("RANK=0 WORLD_SIZE=1")).unwrap().is_some());
        assert_eq!(of("WORLD_SIZE=8 MASTER_ADDR=a").unwrap(), None, "a script's own, for its tasks");
        assert_eq!(of("PATH=/bin RANK=").unwrap(), None);
    }

    #[test]
    fn open_mpis_variables() {
        let all = "OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_LOCAL_RANK=1";
        assert_eq!(place(&format!("{all} MASTER_ADDR=a")), (1, 2, 1, "a".into(), vec![29500]));
        let error = of(all).unwrap_err().to_string();
        let expected =
            "OMPI_COMM_WORLD_RANK is \"1\", but MASTER_ADDR is not set; --launcher local takes no notice of them";
        assert_eq!(error, expected);
    }

    #[test]
    fn mistakes_are_named_with_their_value() {
        let error = |text: &str| of(text).unwrap_err().to_string();
        assert_eq!(error("RANK=x WORLD_SIZE=2 MASTER_ADDR=a"), "RANK is \"x\", which is no rank");
        assert_eq!(error("RANK=-1 WORLD_SIZE=2 MASTER_ADDR=a"), "RANK is \"-1\", which is no rank");
        assert_eq!(error("RANK=0 WORLD_SIZE=0 MASTER_ADDR=a"), "WORLD_SIZE is \"0\", which is no number of ranks");
        assert_eq!(error("RANK=2 WORLD_SIZE=2 MASTER_ADDR=a"), "RANK is 2, but WORLD_SIZE is 2: ranks count from 0");
        assert!(error("RANK=1 MASTER_ADDR=a").starts_with("RANK is \"1\", but WORLD_SIZE is not set"));
        assert!(error("RANK=1 WORLD_SIZE=2").contains("MASTER_ADDR is not set"));
        assert!(error("RANK= WORLD_SIZE=2 LOCAL_RANK=1").starts_with("WORLD_SIZE is \"2\", but RANK is not set"));
        assert_eq!(of("WORLD_SIZE=1").unwrap(), None);
        let port = error("RANK=1 WORLD_SIZE=2 MASTER_ADDR=a MASTER_PORT=99999");
        assert_eq!(port, "MASTER_PORT is \"99999\", which is no port");
        let nodes = error("SLURM_PROCID=0 SLURM_NTASKS=2 SLURM_STEP_ID=0 SLURM_JOB_NODELIST=gpu[x");
        assert!(nodes.starts_with("SLURM_JOB_NODELIST is \"gpu[x\""), "{nodes}");
    }

    #[test]
    fn the_first_host_of_a_list() {
        let first = |list: &str| first_host(list).unwrap();
        assert_eq!([first("a"), first("a,b"), first("n[3-5,7]"), first("n[12]")], ["a", "a", "n3", "n12"]);
        assert_eq!([first("r[1-2]n[01-04],x"), first("n[01-02].cluster.org")], ["r1n01", "n01.cluster.org"]);
        for wrong in ["", "[", "a[", "a[]", "a[b]", "a b", "\u{1b}[1m"] {
            assert_eq!(first_host(wrong), None, "{wrong:?}");
        }
    }

    #[test]
    fn a_plan_of_another_size_is_told_with_both_numbers() {
        let seat = of("RANK=0 WORLD_SIZE=8 MASTER_ADDR=a").unwrap().unwrap();
        assert_eq!(seat.mismatch(8, &"x"), None);
        let told = seat.mismatch(4, &"ddp: 4 replicas").unwrap();
        assert!(told.starts_with("WORLD_SIZE is 8, and the plan has 4 ranks (ddp: 4 replicas)"), "{told}");
        let told = seat.mismatch(1, &"single").unwrap();
        assert!(told.starts_with("WORLD_SIZE is 8, and the plan has 1 rank (single)"), "{told}");
    }
}
