use super::*;

fn variables(text: &str) -> Variables {
    let pairs = text.split_whitespace().map(|pair| pair.split_once('=').unwrap());
    pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}

fn read(text: &str) -> Result<Option<AssignedRank>, PlainError> {
    assigned_rank(&variables(text))
}

fn place(text: &str) -> (usize, usize, usize, String, Vec<u16>) {
    let assigned = read(text).unwrap().unwrap();
    let AssignedRank { rank, world_size, local_rank, leader_host, leader_ports, .. } = assigned;
    (rank, world_size, local_rank, leader_host, leader_ports)
}

#[test]
fn torchs_variables_are_read() {
    let all = "RANK=3 WORLD_SIZE=8 LOCAL_RANK=1 MASTER_ADDR=node-1 MASTER_PORT=1234";
    assert_eq!(place(all), (3, 8, 1, "node-1".into(), vec![1234]));
    assert_eq!(place("RANK=0 WORLD_SIZE=2 MASTER_ADDR=a").4, [29500]);
    let (.., ports) = place(&format!("{all} TORCHELASTIC_USE_AGENT_STORE=True"));
    assert_eq!((ports[0], ports.len()), (1235, 16), "not the one where torchrun itself listens");
    for port in 65500..=u16::MAX {
        let agent = "TORCHELASTIC_USE_AGENT_STORE=True";
        let (.., ports) = place(&format!("RANK=0 WORLD_SIZE=2 MASTER_ADDR=a MASTER_PORT={port} {agent}"));
        assert!(ports.len() == 16 && !ports.contains(&port), "{port}: {ports:?}");
    }
    assert_eq!(place("RANK=0 WORLD_SIZE=1").3, "localhost", "nobody to meet");
    // A job array's or a cluster's own variables beside them do not matter.
    assert_eq!(place(&format!("{all} SLURM_PROCID=5 SLURM_STEP_ID=0 SLURM_NTASKS=9")).0, 3);
}

#[test]
fn slurms_variables_are_read() {
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

#[test]
fn one_machine_is_recognized_and_needs_no_secret() {
    let assigned = |text: &str| read(text).unwrap().unwrap();
    let is_one_machine = |text: &str| assigned(text).is_one_machine;
    let torch = "RANK=0 WORLD_SIZE=4 MASTER_ADDR=node-1";
    assert!(is_one_machine(&format!("{torch} LOCAL_WORLD_SIZE=4")));
    assert!(!is_one_machine(torch) && !is_one_machine(&format!("{torch} LOCAL_WORLD_SIZE=2")));
    for host in ["localhost", "127.0.0.1", "127.1.2.3", "::1"] {
        assert!(is_one_machine(&torch.replace("node-1", host)), "{host}");
    }
    let slurm = "SLURM_PROCID=0 SLURM_NTASKS=4 SLURM_STEP_ID=0 SLURM_JOB_NODELIST=a SLURM_NNODES";
    assert!(is_one_machine(&format!("{slurm}=1")) && !is_one_machine(&format!("{slurm}=2")));
    assert!(is_one_machine(&format!("{slurm}=2 SLURM_STEP_NUM_NODES=1")), "of the step, not the job");
    let mpi = "OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2 MASTER_ADDR=a OMPI_COMM_WORLD_LOCAL_SIZE";
    assert!(is_one_machine(&format!("{mpi}=2")) && !is_one_machine(&format!("{mpi}=1")));
    assert_eq!(assigned(torch).secret, None);
    assert_eq!(assigned(&format!("{torch} RUNNER_TOKEN=")).secret, None);
    assert_eq!(assigned(&format!("{torch} RUNNER_TOKEN=abc")).secret.as_deref(), Some("abc"));
    let job = |text: &str| assigned(text).job;
    assert_ne!(job(&format!("{slurm}=1 SLURM_JOB_ID=1")), job(&format!("{slurm}=1 SLURM_JOB_ID=2")));
}

/// A batch script and the shell of an allocation start tasks, but are not tasks themselves.
#[test]
fn a_shell_in_an_allocation_is_not_a_rank() {
    assert_eq!(read("SLURM_JOB_ID=7 SLURM_NTASKS=8 SLURM_JOB_NODELIST=a").unwrap(), None, "salloc");
    assert_eq!(read("SLURM_JOB_ID=7 SLURM_NTASKS=8 SLURM_PROCID=0 SLURM_LOCALID=0").unwrap(), None, "sbatch");
    let interactive = "SLURM_JOB_ID=7 SLURM_NTASKS=8 SLURM_PROCID=0 SLURM_STEP_ID=4294967290";
    assert_eq!(read(interactive).unwrap(), None);
    let variables = |text: &str| -> Variables {
        text.split_whitespace().map(|p| p.split_once('=').unwrap()).map(|(a, b)| (a.into(), b.into())).collect()
    };
    let one = "SLURM_PROCID=0 SLURM_NTASKS=1 SLURM_STEP_ID=0 SLURM_JOB_NODELIST=a";
    assert!(assigned_rank(&variables(one)).unwrap().is_some());
    assert_eq!(assigned_rank_of_several(&variables(one)).unwrap(), None);
    assert!(assigned_rank_of_several(&variables("RANK=0 WORLD_SIZE=1")).unwrap().is_some());
    assert_eq!(read("WORLD_SIZE=8 MASTER_ADDR=a").unwrap(), None, "a script's own, for its tasks");
    assert_eq!(read("PATH=/bin RANK=").unwrap(), None);
}

#[test]
fn open_mpis_variables_are_read() {
    let all = "OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_LOCAL_RANK=1";
    assert_eq!(place(&format!("{all} MASTER_ADDR=a")), (1, 2, 1, "a".into(), vec![29500]));
    let error = read(all).unwrap_err().to_string();
    let expected =
        "OMPI_COMM_WORLD_RANK is \"1\", but MASTER_ADDR is not set; `--launcher local` ignores these variables";
    assert_eq!(error, expected);
    let one_machine = format!("{all} OMPI_COMM_WORLD_LOCAL_SIZE=2");
    assert_eq!(place(&one_machine).3, "localhost");
    assert_eq!(place(&format!("{one_machine} MASTER_ADDR=a")).3, "a");
}

#[test]
fn mpichs_variables_are_read() {
    let all = "PMI_RANK=5 PMI_SIZE=8 MPI_LOCALRANKID=1 MASTER_ADDR=a MPI_LOCALNRANKS";
    assert_eq!(place(&format!("{all}=4")), (5, 8, 1, "a".into(), vec![29500]));
    assert!(!read(&format!("{all}=4")).unwrap().unwrap().is_one_machine);
    let one_machine = format!("{all}=8").replace("MASTER_ADDR=a ", "");
    assert_eq!(place(&one_machine), (5, 8, 1, "localhost".into(), vec![29500]));
    let assigned = read(&one_machine).unwrap().unwrap();
    assert!(assigned.is_one_machine && assigned.launcher == Launcher::Mpich);
    let error = read("PMI_RANK=5").unwrap_err().to_string();
    assert!(error.starts_with("PMI_RANK is \"5\", but PMI_SIZE is not set"), "{error}");
    assert_eq!(read("PMI_SIZE=8").unwrap(), None);
}

#[test]
fn mistakes_are_named_with_their_value() {
    let error = |text: &str| read(text).unwrap_err().to_string();
    assert_eq!(error("RANK=x WORLD_SIZE=2 MASTER_ADDR=a"), "RANK must be a rank, got \"x\"");
    assert_eq!(error("RANK=-1 WORLD_SIZE=2 MASTER_ADDR=a"), "RANK must be a rank, got \"-1\"");
    assert_eq!(error("RANK=0 WORLD_SIZE=0 MASTER_ADDR=a"), "WORLD_SIZE must be a number of ranks, got \"0\"");
    assert_eq!(
        error("RANK=2 WORLD_SIZE=2 MASTER_ADDR=a"),
        "RANK must be below WORLD_SIZE, which is 2, got 2; \
        ranks count from 0"
    );
    assert!(error("RANK=1 MASTER_ADDR=a").starts_with("RANK is \"1\", but WORLD_SIZE is not set"));
    assert!(error("RANK=1 WORLD_SIZE=2").contains("MASTER_ADDR is not set"));
    assert!(error("RANK= WORLD_SIZE=2 LOCAL_RANK=1").starts_with("WORLD_SIZE is \"2\", but RANK is not set"));
    assert_eq!(read("WORLD_SIZE=1").unwrap(), None);
    let port = error("RANK=1 WORLD_SIZE=2 MASTER_ADDR=a MASTER_PORT=99999");
    assert_eq!(port, "MASTER_PORT must be a port, got \"99999\"");
    let nodes = error("SLURM_PROCID=0 SLURM_NTASKS=2 SLURM_STEP_ID=0 SLURM_JOB_NODELIST=gpu[x");
    assert!(nodes.starts_with("SLURM_JOB_NODELIST must start with the name of a machine, got \"gpu[x\""), "{nodes}");
}

#[test]
fn the_first_host_of_a_list_is_found() {
    let first = |list: &str| first_host(list).unwrap();
    assert_eq!([first("a"), first("a,b"), first("n[3-5,7]"), first("n[12]")], ["a", "a", "n3", "n12"]);
    assert_eq!([first("r[1-2]n[01-04],x"), first("n[01-02].cluster.org")], ["r1n01", "n01.cluster.org"]);
    for wrong in ["", "[", "a[", "a[]", "a[b]", "a b", "\u{1b}[1m"] {
        assert_eq!(first_host(wrong), None, "{wrong:?}");
    }
}

#[test]
fn the_error_of_a_plan_of_a_different_size_names_both_numbers() {
    let assigned = read("RANK=0 WORLD_SIZE=8 MASTER_ADDR=a").unwrap().unwrap();
    assert_eq!(assigned.world_size_problem(8, &"x"), None);
    let problem = assigned.world_size_problem(4, &"ddp: 4 replicas").unwrap();
    assert!(problem.starts_with("WORLD_SIZE is 8, but the plan has 4 ranks (ddp: 4 replicas)"), "{problem}");
    let problem = assigned.world_size_problem(1, &"single").unwrap();
    assert!(problem.starts_with("WORLD_SIZE is 8, but the plan has 1 rank (single)"), "{problem}");
}

#[test]
fn restarts_are_those_that_the_launcher_counts() {
    let count = |text: &str| restart_count(&variables(text)).map_err(|error| error.text);
    assert_eq!(count("RANK=0"), Ok(0));
    assert_eq!(count("TORCHELASTIC_RESTART_COUNT=2"), Ok(2));
    assert_eq!(count("SLURM_RESTART_COUNT=1 RUNNER_RESTARTS=3"), Ok(3));
    let wrong = count("SLURM_RESTART_COUNT=no").unwrap_err();
    assert_eq!(wrong, "SLURM_RESTART_COUNT must be a number of restarts, got \"no\"");
}
