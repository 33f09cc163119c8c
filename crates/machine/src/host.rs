//! Facts about the machine, this process and a folder's git repository, for the record of a run.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use serde::{Deserialize, Serialize};

use crate::memory_limit::{MemoryLimit, memory_limit};

/// The machine a run is on. `None`: not known here.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    pub os: String,
    pub arch: String,
    pub cpu: Option<String>,
    /// Cores this process may use.
    pub cores: usize,
    pub memory_bytes: Option<u64>,
    /// `None`: this process may use all of the machine's memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_limit: Option<MemoryLimit>,
}

impl Machine {
    /// Facts about this machine.
    pub fn detect() -> Self {
        // Systems without these files have no name or kernel in the record.
        let name = fs::read_to_string("/etc/os-release")
            .ok()
            .and_then(|text| field(&text, "PRETTY_NAME", '=').map(|name| name.trim_matches('"').to_owned()));
        let family = std::env::consts::OS;
        let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").ok();
        let kernel = kernel.map(|kernel| format!("{family} {}", kernel.trim()));
        let os = match (name, kernel) {
            (Some(name), Some(kernel)) => format!("{name}, {kernel}"),
            (name, kernel) => name.or(kernel).unwrap_or_else(|| family.to_owned()),
        };
        Self {
            os,
            arch: std::env::consts::ARCH.to_owned(),
            cpu: cpu_name(),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            memory_bytes: total_memory_bytes(),
            memory_limit: memory_limit(),
        }
    }
}

/// The mean number of processes that computed, or wanted to, over the last minute; `None` where the kernel does not report it.
pub fn load_average() -> Option<f64> {
    first_number(&fs::read_to_string("/proc/loadavg").ok()?)
}

fn first_number(text: &str) -> Option<f64> {
    text.split_whitespace().next()?.parse().ok()
}

/// The processor's name; `None` where the kernel does not report it.
pub(crate) fn cpu_name() -> Option<String> {
    field(&fs::read_to_string("/proc/cpuinfo").ok()?, "model name", ':').map(str::to_owned)
}

/// The machine's memory; `None` where the kernel does not report it.
pub(crate) fn total_memory_bytes() -> Option<u64> {
    kibibytes(&fs::read_to_string("/proc/meminfo").ok()?, "MemTotal")
}

/// The state of the git repository around a folder.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Git {
    pub commit: String,
    /// Tracked files differ from the commit.
    pub dirty: bool,
}

impl Git {
    /// The state of the repository around `folder`; `None` without git, a repository or a commit.
    pub fn state_of(folder: &Path) -> Option<Self> {
        let commit = git(folder, &["rev-parse", "--verify", "HEAD"])?.trim().to_owned();
        let dirty = !git(folder, &["status", "--porcelain", "--untracked-files=no"])?.trim().is_empty();
        Some(Self { commit, dirty })
    }
}

fn git(folder: &Path, arguments: &[&str]) -> Option<String> {
    // Reading the status must not take the index lock that an editor or a commit may want.
    let mut command = Command::new("git");
    command.arg("--no-optional-locks").arg("-C").arg(folder).args(arguments);
    let output = command.stdin(Stdio::null()).stderr(Stdio::null()).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
}

/// The most memory this process has had resident, in bytes; `None` where the kernel does not report it.
pub fn peak_rss_bytes() -> Option<u64> {
    kibibytes(&fs::read_to_string("/proc/self/status").ok()?, "VmHWM")
}

/// The machine that this process runs on, by its name and the time of its start, because two machines may have one name. `host_name`
/// is its name where the kernel does not report it.
pub fn machine_id(host_name: Option<&str>) -> String {
    let name = fs::read_to_string("/proc/sys/kernel/hostname").ok();
    let name = name.as_deref().map(str::trim).filter(|name| !name.is_empty()).or(host_name);
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok();
    let boot = boot.as_deref().and_then(|id| id.trim().split('-').next());
    format!("{} {}", name.unwrap_or("unknown"), boot.unwrap_or("unknown"))
}

/// The cores that this process may use, such as `0-3,8`; `None` where the kernel does not report them.
pub fn allowed_core_list() -> Option<String> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    field(&status, "Cpus_allowed_list", ':').map(str::to_owned)
}

pub(crate) fn field<'a>(text: &'a str, name: &str, separator: char) -> Option<&'a str> {
    text.lines().find_map(|line| {
        let (key, value) = line.split_once(separator)?;
        (key.trim() == name).then(|| value.trim())
    })
}

fn kibibytes(text: &str, name: &str) -> Option<u64> {
    field(text, name, ':')?.strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_tables_are_read() {
        assert_eq!(kibibytes("VmPeak:\t 9 kB\nVmHWM:\t    2048 kB\n", "VmHWM"), Some(2048 * 1024));
        assert_eq!(kibibytes("VmHWM:\t much\n", "VmHWM"), None);
        assert_eq!(kibibytes("MemTotal:       24000 kB\nMemFree: 1 kB\n", "MemTotal"), Some(24_000 * 1024));
        assert_eq!(kibibytes("", "MemTotal"), None);
        assert_eq!([first_number("1.25 0.9 0.7 1/99 7\n"), first_number("")], [Some(1.25), None]);
        assert_eq!(field("model name\t: Some CPU\n", "model name", ':'), Some("Some CPU"));
        assert!(Machine::detect().cores >= 1);
        if cfg!(target_os = "linux") {
            assert!(peak_rss_bytes().unwrap() > 1 << 20);
        }
    }

    #[test]
    fn the_state_of_a_repository_is_found() {
        let dir = tempfile::tempdir().unwrap();
        let run = |arguments: &[&str]| {
            let identity = ["-c", "user.name=t", "-c", "user.email=t@example.org"];
            git(dir.path(), &[&identity, arguments].concat())
        };
        assert_eq!(Git::state_of(dir.path()), None);
        if run(&["init", "-q"]).is_none() {
            runner_spec::skip!("there is no git");
        }
        assert_eq!(Git::state_of(dir.path()), None, "no commit yet");
        fs::write(dir.path().join("a"), "1").unwrap();
        run(&["add", "a"]).unwrap();
        run(&["commit", "-q", "-m", "m"]).unwrap();
        let clean = Git::state_of(dir.path()).unwrap();
        assert!(!clean.dirty && clean.commit.len() >= 40);
        fs::write(dir.path().join("untracked"), "1").unwrap();
        assert!(!Git::state_of(dir.path()).unwrap().dirty);
        fs::write(dir.path().join("a"), "2").unwrap();
        assert!(Git::state_of(dir.path()).unwrap().dirty);
    }
}
