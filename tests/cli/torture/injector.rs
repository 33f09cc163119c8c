//! Runs the program under `tests/torture/shim.c`, which lets a chosen change of a file fail, or records all of them.

use std::fs::{self, File};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::sandbox::{Arguments, Finished, RunningProcess, Sandbox, repository_path, wait_until};

/// The size of the memory that processes share with the test: a counter, and the description of the call that failed.
const SHARED_BYTES: usize = 8 + 2 * 4096;

/// The fault that is injected at a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FaultKind {
    /// The call fails with ENOSPC.
    NoSpace,
    /// This call and all later ones that take space fail with ENOSPC.
    Full,
    /// The call fails with EIO.
    InputOutput,
    /// Half of the bytes are written.
    Short,
    /// Half of the bytes are written, and the process is killed.
    Torn,
    KillBefore,
    KillAfter,
}

impl FaultKind {
    const ALL: [Self; 7] =
        [Self::NoSpace, Self::Full, Self::InputOutput, Self::Short, Self::Torn, Self::KillBefore, Self::KillAfter];

    /// The word for the kind in `shim.c`.
    fn word(self) -> &'static str {
        match self {
            Self::NoSpace => "no-space",
            Self::Full => "full",
            Self::InputOutput => "input-output",
            Self::Short => "short",
            Self::Torn => "torn",
            Self::KillBefore => "kill-before",
            Self::KillAfter => "kill-after",
        }
    }

    pub fn is_kill(self) -> bool {
        matches!(self, Self::Torn | Self::KillBefore | Self::KillAfter)
    }

    /// The kinds that `call` can have.
    pub fn possible_for(call: &Call) -> impl Iterator<Item = Self> + use<> {
        let is_divisible = call.operation == "write" && call.data.len() > 1;
        Self::ALL.into_iter().filter(move |kind| is_divisible || !matches!(kind, Self::Short | Self::Torn))
    }
}

/// A call that changes a file, as `shim.c` records it. Paths are relative to the sandbox's folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Call {
    /// `none` for a call that changed nothing.
    pub operation: String,
    pub path: PathBuf,
    /// The new name, for `rename` and `link`.
    pub second: PathBuf,
    pub offset: usize,
    pub data: Vec<u8>,
}

/// A call that was made to fail.
#[derive(Debug)]
pub struct FailedCall {
    pub operation: String,
    /// The path of the file, or its new name, relative to the sandbox's folder.
    pub path: PathBuf,
}

pub struct Injector {
    /// The compiled library, and files that the processes under test share with the test.
    folder: tempfile::TempDir,
}

impl Injector {
    /// Compiles the library. `None` if there is no C compiler.
    pub fn new() -> Option<Self> {
        let folder = tempfile::tempdir().unwrap();
        let mut compiler = Command::new("cc");
        compiler.args(["-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-o"]);
        match compiler.arg(folder.path().join("shim.so")).arg(repository_path("tests/torture/shim.c")).status() {
            Err(error) if error.kind() == ErrorKind::NotFound => {
                runner_spec::skip!("there is no C compiler (cc)");
            }
            status => assert!(status.unwrap().success(), "tests/torture/shim.c does not compile"),
        }
        Some(Self { folder })
    }

    /// Runs a command to its end, and waits for the end of the processes that it started. Also returns the call that failed, if one did.
    pub fn run(
        &self,
        sandbox: &Sandbox,
        arguments: &str,
        fault: Option<(usize, FaultKind)>,
    ) -> (Finished, Option<FailedCall>) {
        let mut command = sandbox.command(arguments);
        if let Some((call, kind)) = fault {
            command.env("TORTURE_CALL", call.to_string()).env("TORTURE_FAULT", kind.word());
        }
        let finished = self.run_command(sandbox, &mut command);
        let shared = fs::read(self.folder.path().join("shared")).unwrap();
        let text = shared[8..].split(|byte| *byte == 0).next().unwrap();
        let failed = str::from_utf8(text)
            .unwrap()
            .split_once('\t')
            .map(|(operation, path)| FailedCall { operation: operation.to_owned(), path: relative(sandbox, path) });
        (finished, failed)
    }

    /// Runs a command that must succeed, and returns the calls that it made, in order.
    pub fn record(&self, sandbox: &Sandbox, arguments: &(impl Arguments + ?Sized)) -> Vec<Call> {
        let log = self.folder.path().join("log");
        let _ = fs::remove_file(&log);
        let mut command = sandbox.command(arguments);
        self.run_command(sandbox, command.env("TORTURE_LOG", &log)).expect_code(0);
        parse_log(sandbox, &fs::read(log).unwrap())
    }

    fn run_command(&self, sandbox: &Sandbox, command: &mut Command) -> Finished {
        let at = |name: &str| self.folder.path().join(name);
        fs::write(at("shared"), [0; SHARED_BYTES]).unwrap();
        command.env("LD_PRELOAD", at("shim.so")).env("TORTURE_SHARED", at("shared"));
        command.env("TORTURE_FOLDER", fs::canonicalize(sandbox.folder()).unwrap());
        let output = |name: &str| File::create(at(name)).unwrap();
        let mut process = RunningProcess(command.stdout(output("stdout")).stderr(output("stderr")).spawn().unwrap());
        wait_until("the command ends", || process.has_ended());
        // Processes hold a shared lock of the file while they live.
        let shared = File::open(at("shared")).unwrap();
        wait_until("the processes that it started end", || shared.try_lock().is_ok());
        let [stdout, stderr] = ["stdout", "stderr"].map(|name| fs::read(at(name)).unwrap());
        let status = process.0.wait().unwrap();
        assert_ne!(status.code(), Some(97), "{}", String::from_utf8_lossy(&stderr));
        Finished::new(command, std::process::Output { status, stdout, stderr })
    }
}

/// `path` from the sandbox's folder, without the components `.`.
fn relative(sandbox: &Sandbox, path: &str) -> PathBuf {
    let folder = fs::canonicalize(sandbox.folder()).unwrap();
    Path::new(path).strip_prefix(folder).unwrap_or(Path::new(path)).components().collect()
}

fn parse_log(sandbox: &Sandbox, mut log: &[u8]) -> Vec<Call> {
    let mut calls = Vec::new();
    while !log.is_empty() {
        let end = log.iter().position(|byte| *byte == b'\n').unwrap();
        let fields: Vec<&str> = str::from_utf8(&log[..end]).unwrap().split('\t').collect();
        let [operation, path, second, offset, bytes] = fields[..] else { panic!("{fields:?}") };
        let (data, rest) = log[end + 1..].split_at(bytes.parse().unwrap());
        calls.push(Call {
            operation: operation.to_owned(),
            path: relative(sandbox, path),
            second: relative(sandbox, second),
            offset: offset.parse().unwrap(),
            data: data.to_vec(),
        });
        log = rest;
    }
    calls
}
