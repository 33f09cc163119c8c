//! A temporary folder in which a test runs the program as a user would, and readers of what the program leaves there.

#![allow(dead_code, reason = "each test binary uses a part of this")]

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

pub mod screens;

/// Variables of the caller's environment that would change what the program does.
const CLEARED_VARIABLES: [&str; 14] = [
    "COLUMNS",
    "RUNNER_RUNS",
    "RUNNER_TOKEN",
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
    "OMPI_COMM_WORLD_RANK",
    "OMPI_COMM_WORLD_SIZE",
    "PMI_RANK",
    "PMI_SIZE",
    "PMIX_RANK",
];

/// The longest that a test waits for something that the program should do.
const WAIT_TIMEOUT: Duration = Duration::from_mins(2);

/// The program under test. `RUNNER_GPU_BINARY` names it where the tests were carried to another machine.
pub fn runner_binary() -> PathBuf {
    std::env::var_os("RUNNER_GPU_BINARY").map_or_else(|| env!("CARGO_BIN_EXE_runner").into(), PathBuf::from)
}

/// A file or folder of the repository.
pub fn repository_path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(name)
}

/// The arguments of a command: a list, or one line that is split at spaces.
pub trait Arguments {
    fn list(&self) -> Vec<&str>;
}

impl Arguments for str {
    fn list(&self) -> Vec<&str> {
        self.split_whitespace().collect()
    }
}

impl Arguments for String {
    fn list(&self) -> Vec<&str> {
        self.as_str().list()
    }
}

impl Arguments for [&str] {
    fn list(&self) -> Vec<&str> {
        self.to_vec()
    }
}

impl<const N: usize> Arguments for [&str; N] {
    fn list(&self) -> Vec<&str> {
        self.to_vec()
    }
}

impl Arguments for Vec<&str> {
    fn list(&self) -> Vec<&str> {
        self.clone()
    }
}

/// A temporary folder with its own folder of runs (`runs`) and cache (`cache`). It is the working directory of the commands.
pub struct Sandbox {
    folder: Arc<tempfile::TempDir>,
    /// Commands and what they printed, for a snapshot.
    shown: Mutex<String>,
}

impl Sandbox {
    pub fn new() -> Self {
        Self { folder: Arc::new(tempfile::tempdir().unwrap()), shown: Mutex::default() }
    }

    /// A sandbox in memory where the system has such a file system: `fsync` then takes no time.
    pub fn in_memory() -> Self {
        let folder = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir());
        Self { folder: Arc::new(folder.unwrap()), shown: Mutex::default() }
    }

    /// Adds a file, and the folders above it.
    pub fn with(self, name: &str, contents: impl AsRef<[u8]>) -> Self {
        self.write(name, contents);
        self
    }

    /// Adds `input.txt`, a text of `count` numbers that repeats, on which training is stable: rounding is hardly amplified.
    pub fn with_squares(self, count: u32) -> Self {
        let numbers = (0..count).map(|i| (i * (i % 4093) % 997).to_string() + " ");
        self.with("input.txt", numbers.collect::<String>())
    }

    /// Adds `input.txt`, a text of `count` numbers below 1,000, which does not repeat.
    pub fn with_numbers(self, count: u32) -> Self {
        let number = |i: u32| {
            let mixed = (i + 1).wrapping_mul(0x9e37_79b1);
            let mixed = (mixed ^ (mixed >> 15)).wrapping_mul(0x85eb_ca6b) >> 8;
            // As many digits as the squares below 997 have.
            let least = 10_u32.pow((i * (i % 4093) % 997).checked_ilog10().unwrap_or(0));
            (least + mixed % (9 * least)).to_string() + " "
        };
        self.with("input.txt", (0..count).map(number).collect::<String>())
    }

    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    pub fn path(&self, name: impl AsRef<Path>) -> PathBuf {
        self.folder.path().join(name)
    }

    pub fn write(&self, name: &str, contents: impl AsRef<[u8]>) {
        let path = self.path(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, contents).unwrap();
    }

    pub fn read(&self, name: impl AsRef<Path>) -> String {
        fs::read_to_string(self.path(name)).unwrap()
    }

    /// Replaces `from`, which must be there, in a file.
    pub fn edit(&self, name: impl AsRef<Path>, from: &str, to: &str) {
        let text = self.read(&name);
        assert!(text.contains(from), "no {from:?} in {text}");
        fs::write(self.path(name), text.replace(from, to)).unwrap();
    }

    /// Names and contents of the files in a folder, in order; hidden files are included.
    pub fn files_in(&self, folder: &str) -> Vec<(String, Vec<u8>)> {
        files_in(&self.path(folder))
    }

    /// Names of what is in a folder, in order; hidden files are included.
    pub fn names_in(&self, folder: &str) -> Vec<String> {
        names_in(&self.path(folder))
    }

    /// Sets the folder and the environment in which a command works.
    pub fn prepare<'a>(&self, command: &'a mut Command) -> &'a mut Command {
        for variable in CLEARED_VARIABLES {
            command.env_remove(variable);
        }
        // A backtrace of a program with symbols takes seconds, or minutes on a busy machine: longer than a rank may hang.
        command.env("RUST_BACKTRACE", "0");
        command.current_dir(self.folder()).env("RUNNER_CACHE", self.path("cache")).stdin(Stdio::null())
    }

    pub fn command(&self, arguments: &(impl Arguments + ?Sized)) -> Command {
        let mut command = Command::new(runner_binary());
        self.prepare(&mut command).args(arguments.list());
        command
    }

    /// Runs a command to its end, whatever that is.
    pub fn run(&self, arguments: &(impl Arguments + ?Sized)) -> Finished {
        Finished::of(&mut self.command(arguments))
    }

    /// Runs a command that must end with this exit code, and returns everything it printed.
    #[track_caller]
    pub fn expect(&self, code: i32, arguments: &(impl Arguments + ?Sized)) -> String {
        self.run(arguments).expect_code(code).text()
    }

    /// Runs a command that must succeed, and returns its standard output.
    #[track_caller]
    pub fn stdout_of(&self, arguments: &(impl Arguments + ?Sized)) -> String {
        self.run(arguments).expect_code(0).stdout
    }

    /// Runs a command that must succeed, and returns its standard output, which is JSON.
    #[track_caller]
    pub fn json_of(&self, arguments: &(impl Arguments + ?Sized)) -> Value {
        self.run(arguments).expect_code(0).json()
    }

    /// Starts a command without reading its output.
    pub fn spawn(&self, arguments: &(impl Arguments + ?Sized)) -> RunningProcess {
        RunningProcess(self.command(arguments).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap())
    }

    /// The run directories in `runs`, by id.
    pub fn runs(&self) -> BTreeMap<String, RunFolder> {
        self.runs_in("runs")
    }

    /// The run directories in `folder`, by id.
    pub fn runs_in(&self, folder: &str) -> BTreeMap<String, RunFolder> {
        let Ok(entries) = fs::read_dir(self.path(folder)) else { return BTreeMap::new() };
        let paths = entries.map(|entry| entry.unwrap().path()).filter(|path| {
            !path.file_name().unwrap().to_string_lossy().starts_with('.') && path.join("manifest.json").exists()
        });
        paths.map(RunFolder).map(|run| (run.id(), run)).collect()
    }

    /// The run in `runs`, which must be the only one.
    #[track_caller]
    pub fn only_run(&self) -> RunFolder {
        self.only_run_in("runs")
    }

    /// The run in `folder`, which must be the only one.
    #[track_caller]
    pub fn only_run_in(&self, folder: &str) -> RunFolder {
        let runs = self.runs_in(folder);
        assert_eq!(runs.len(), 1, "{:?}", runs.keys());
        runs.into_values().next().unwrap()
    }

    /// Returns a function that gives the step at which a run's first session after this call started, or `None` before that session. Its
    /// process heeds signals from then on. Steps that a run has recorded do not show that: earlier sessions may have gone further than a test
    /// waited for.
    pub fn new_session_start(&self) -> impl Fn(&RunFolder) -> Option<u64> + use<> {
        let earlier: BTreeMap<_, _> =
            self.runs().into_iter().map(|(id, run)| (id, run.session_starts().count())).collect();
        move |run| run.session_starts().nth(earlier.get(&run.id()).copied().unwrap_or(0))
    }

    /// Starts a command, and waits until a run is at the given moment or the command has ended.
    pub fn spawn_until(
        &self,
        arguments: &(impl Arguments + ?Sized),
        is_at: impl Fn(&RunFolder) -> bool,
    ) -> RunningProcess {
        let mut process = self.spawn(arguments);
        wait_until("a run is at the moment", || self.runs().values().any(&is_at) || process.has_ended());
        process
    }
}

/// How a command ended, and what it printed.
#[derive(Debug)]
pub struct Finished {
    arguments: String,
    /// The exit code; -1 if a signal ended the process.
    pub code: i32,
    pub stdout: String,
    pub stderr: String,
}

impl Finished {
    /// Runs `command` to its end.
    pub fn of(command: &mut Command) -> Self {
        let output = command.output().unwrap();
        Self::new(command, output)
    }

    /// The end of a process that `command` started.
    pub fn new(command: &Command, output: Output) -> Self {
        let quoted = |argument: &OsStr| {
            let text = argument.to_string_lossy();
            if text.is_empty() || text.contains(' ') { format!("'{text}'") } else { text.into_owned() }
        };
        let arguments: Vec<_> = command.get_args().map(quoted).collect();
        let [stdout, stderr] = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
        Self { arguments: arguments.join(" "), code: output.status.code().unwrap_or(-1), stdout, stderr }
    }

    /// Everything that was printed: standard output, then standard error.
    pub fn text(&self) -> String {
        format!("{}{}", self.stdout, self.stderr)
    }

    #[track_caller]
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|e| panic!("{e}: {}", self.text()))
    }

    /// The lines of standard output, each of which is JSON.
    #[track_caller]
    pub fn json_lines(&self) -> Vec<Value> {
        self.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    #[track_caller]
    pub fn expect_code(self, code: i32) -> Self {
        assert_eq!(self.code, code, "{}: {}", self.arguments, self.text());
        self
    }
}

/// A process that is killed when its test ends, if it has not ended by then.
pub struct RunningProcess(pub Child);

impl RunningProcess {
    pub fn id(&self) -> u32 {
        self.0.id()
    }

    pub fn has_ended(&mut self) -> bool {
        self.0.try_wait().unwrap().is_some()
    }

    /// Kills the process and waits for its end.
    pub fn kill(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }

    /// Waits for the end, and returns the exit code; None if a signal ended the process.
    pub fn wait(&mut self) -> Option<i32> {
        self.0.wait().unwrap().code()
    }

    /// Waits for the end, and returns the exit code, and what was printed to the standard output and error that are pipes.
    pub fn finish(mut self) -> (Option<i32>, String) {
        let mut text = String::new();
        if let Some(mut stdout) = self.0.stdout.take() {
            stdout.read_to_string(&mut text).unwrap();
        }
        if let Some(mut stderr) = self.0.stderr.take() {
            stderr.read_to_string(&mut text).unwrap();
        }
        (self.wait(), text)
    }

    /// Sends a signal by its name, such as `INT`.
    #[track_caller]
    pub fn signal(&mut self, name: &str) {
        // The number of a process whose end is known may be another's.
        assert!(!self.has_ended(), "the process ended before its signal");
        send_signal(name, self.id().into());
    }
}

impl Drop for RunningProcess {
    fn drop(&mut self) {
        // Both fail if the process has ended, which is what is wanted.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Sends a signal by its name to a process, or to a process group if the id is negative.
pub fn send_signal(name: &str, pid: i64) {
    let signal = match name {
        "KILL" => libc::SIGKILL,
        "TERM" => libc::SIGTERM,
        "INT" => libc::SIGINT,
        "HUP" => libc::SIGHUP,
        "USR1" => libc::SIGUSR1,
        "STOP" => libc::SIGSTOP,
        "CONT" => libc::SIGCONT,
        other => panic!("no test sends {other}"),
    };
    // By a call, not by a program: several processes are to get it before any of them can react to the first.
    #[expect(unsafe_code, reason = "FFI")]
    // SAFETY: takes two numbers.
    let status = unsafe { libc::kill(pid as libc::pid_t, signal) };
    assert_eq!(status, 0, "{name} to {pid}: {}", std::io::Error::last_os_error());
}

/// Waits until `is_true`, and fails with `what` after a time in which any test would be done.
#[track_caller]
pub fn wait_until(what: &str, mut is_true: impl FnMut() -> bool) {
    let started = Instant::now();
    while !is_true() {
        assert!(started.elapsed() < WAIT_TIMEOUT, "waited in vain until {what}");
        thread::sleep(Duration::from_micros(200));
    }
}

/// A run directory.
#[derive(Debug, Clone)]
pub struct RunFolder(pub PathBuf);

impl RunFolder {
    pub fn id(&self) -> String {
        self.0.file_name().unwrap().to_str().unwrap().to_owned()
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    pub fn read(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap()
    }

    pub fn write(&self, name: &str, contents: impl AsRef<[u8]>) {
        fs::write(self.path(name), contents).unwrap();
    }

    pub fn json(&self, name: &str) -> Value {
        read_json(&self.path(name))
    }

    /// Writes `value` to a file of JSON, with the hash of its content.
    pub fn write_sealed(&self, name: &str, mut value: Value) {
        value.as_object_mut().unwrap().remove("content_hash");
        self.write(name, runner_files::sealed_json::seal(&value).unwrap());
    }

    pub fn summary(&self) -> Value {
        self.json("summary.json")
    }

    pub fn manifest(&self) -> Value {
        self.json("manifest.json")
    }

    pub fn final_hash(&self) -> String {
        self.summary()["final_hash"].as_str().unwrap().to_owned()
    }

    /// The lines of `metrics.jsonl`. The last line is left out while it is being written.
    pub fn metrics(&self) -> Vec<Value> {
        let text = fs::read_to_string(self.path("metrics.jsonl")).unwrap_or_default();
        text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
    }

    /// The lines of one kind, such as `train`.
    pub fn metrics_of(&self, kind: &str) -> Vec<Value> {
        self.metrics().into_iter().filter(|line| line["kind"] == kind).collect()
    }

    /// The losses of all training steps.
    pub fn train_losses(&self) -> Vec<f64> {
        self.metrics_of("train").iter().map(|line| line["loss"].as_f64().unwrap()).collect()
    }

    /// The lines of metrics without times: what must not depend on interruptions, and on who started the ranks.
    pub fn numbers(&self) -> Vec<String> {
        let keys = ["kind", "step", "loss", "lr", "grad_norm", "tokens", "val_loss", "val_perplexity"];
        self.metrics().iter().map(|line| keys.map(|key| line[key].to_string()).join(" ")).collect()
    }

    /// What [`numbers`](Self::numbers) returns, the samples, and the results of rows.
    pub fn numbers_and_samples(&self) -> Vec<String> {
        [self.numbers(), vec![self.read("samples.jsonl"), self.read("rows.jsonl")]].concat()
    }

    /// True if the step has been recorded.
    pub fn has_step(&self, step: usize) -> bool {
        self.metrics().iter().any(|line| line["kind"] == "train" && line["step"] == step)
    }

    /// The steps at which the run's sessions started.
    pub fn session_starts(&self) -> impl Iterator<Item = u64> {
        let sessions = self.manifest()["sessions"].as_array().cloned();
        sessions.into_iter().flatten().map(|session| session["from_step"].as_u64().unwrap())
    }

    /// True while a checkpoint is being written.
    pub fn is_saving(&self) -> bool {
        fs::read_dir(self.path("checkpoints")).is_ok_and(|mut entries| {
            entries.any(|e| e.is_ok_and(|e| e.file_name().to_string_lossy().starts_with(".tmp-step")))
        })
    }

    pub fn checkpoint(&self, step: u64) -> PathBuf {
        self.path(&format!("checkpoints/step-{step:08}"))
    }
}

pub fn read_json(path: &Path) -> Value {
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

/// Names of what is in a folder, in order; hidden files are included.
pub fn names_in(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap();
    let mut names: Vec<String> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// Names and contents of the files in a folder, in order; hidden files are included.
pub fn files_in(folder: &Path) -> Vec<(String, Vec<u8>)> {
    let read = |name: String| (name.clone(), fs::read(folder.join(name)).unwrap());
    names_in(folder).into_iter().map(read).collect()
}
