//! Limits that control groups set on the memory of this process.

use std::fs;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::host::total_memory_bytes;

/// A limit on the memory of this process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryLimit {
    pub bytes: u64,
    /// What sets it: `the control group /slurm/job_7 (memory.max)`.
    pub source: String,
}

/// The smallest limit on the memory of this process that is below the memory of the machine.
pub(crate) fn memory_limit() -> Option<MemoryLimit> {
    let smallest = control_group_limits(Path::new("/")).into_iter().min_by_key(|limit| limit.bytes)?;
    // A control group without a limit has a huge one under version 1.
    total_memory_bytes().is_none_or(|all| smallest.bytes < all).then_some(smallest)
}

/// The limits of the control groups that this process is in, up to the roots of their hierarchies. The kernel's files are below `root`.
fn control_group_limits(root: &Path) -> Vec<MemoryLimit> {
    // Systems without control groups have neither file.
    let read = |file: &str| fs::read_to_string(root.join(file)).ok();
    let Some((groups, mounts)) = read("proc/self/cgroup").zip(read("proc/self/mountinfo")) else { return Vec::new() };
    let hierarchies = mounts.lines().filter_map(Hierarchy::parse);
    let limits = hierarchies.filter_map(|hierarchy| {
        let group = groups.lines().find_map(|line| hierarchy.group(line))?;
        Some(hierarchy.limits(root, group))
    });
    limits.flatten().collect()
}

/// A mounted hierarchy of control groups that controls memory.
#[derive(Debug, PartialEq, Eq)]
struct Hierarchy {
    version: Version,
    /// The group that is mounted. In a container it may be the container's group.
    top: String,
    mount_point: PathBuf,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Version {
    V1,
    V2,
}

impl Hierarchy {
    /// Parses a line of `/proc/self/mountinfo`; `None` if it is a different mount.
    fn parse(line: &str) -> Option<Self> {
        let (mount, file_system) = line.split_once(" - ")?;
        let mut file_system = file_system.split(' ');
        let version = match (file_system.next()?, file_system.nth(1)?) {
            ("cgroup2", _) => Version::V2,
            ("cgroup", options) if options.split(',').any(|option| option == "memory") => Version::V1,
            _ => return None,
        };
        let mut fields = mount.split(' ').skip(3);
        let (top, mount_point) = (unescape(fields.next()?), unescape(fields.next()?));
        Some(Self { version, top, mount_point: PathBuf::from(mount_point) })
    }

    /// The group that a line of `/proc/self/cgroup` names, if the line is about this hierarchy.
    fn group<'a>(&self, line: &'a str) -> Option<&'a str> {
        let mut fields = line.splitn(3, ':');
        let (number, controllers, group) = (fields.next()?, fields.next()?, fields.next()?);
        let is_named = match self.version {
            Version::V1 => controllers.split(',').any(|controller| controller == "memory"),
            Version::V2 => number == "0" && controllers.is_empty(),
        };
        is_named.then_some(group)
    }

    /// The limits of `group` and of the groups above it, as far as they are mounted.
    fn limits(&self, root: &Path, group: &str) -> Vec<MemoryLimit> {
        // A group outside of what is mounted is unknown, but still below the mounted one.
        let below = Path::new(group).strip_prefix(&self.top).ok().filter(|below| !below.starts_with(".."));
        let below = below.unwrap_or(Path::new(""));
        // The mount point is absolute, and a path in `root`.
        let mount_point = root.join(self.mount_point.strip_prefix("/").unwrap_or(&self.mount_point));
        let files: &[&str] = match self.version {
            Version::V1 => &["memory.limit_in_bytes"],
            // Above `memory.high` the kernel slows a process until it hardly runs.
            Version::V2 => &["memory.max", "memory.high"],
        };
        let mut limits = Vec::new();
        let mut push = |group: &Path, file: &str, bytes: Option<u64>| {
            let name = Path::new(&self.top).join(group);
            // Without the slash that joining nothing adds.
            let source = format!("the control group {} ({file})", name.components().as_path().display());
            limits.extend(bytes.map(|bytes| MemoryLimit { bytes, source }));
        };
        for group in below.ancestors() {
            let folder = mount_point.join(group);
            // Under version 1 a group need not count the memory of those in it.
            let is_outside =
                group != below && read_text(&folder.join("memory.use_hierarchy")).is_some_and(|on| on == "0");
            if is_outside {
                break;
            }
            for file in files {
                // Without a limit the text is `max`.
                push(group, file, read_text(&folder.join(file)).and_then(|text| text.parse().ok()));
            }
        }
        if self.version == Version::V1 {
            // This limit includes the limits of groups that are not mounted here. It comes last, so that among equal limits the group that
            // sets it is named.
            let statistics = read_text(&mount_point.join(below).join("memory.stat")).unwrap_or_default();
            let name = "hierarchical_memory_limit";
            let smallest = statistics.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok());
            push(below, name, smallest);
        }
        limits
    }
}

/// The text of a kernel's file; `None` if the kernel does not have it.
fn read_text(file: &Path) -> Option<String> {
    Some(fs::read_to_string(file).ok()?.trim().to_owned())
}

/// A path of `/proc/self/mountinfo`, in which some characters are octal numbers: `\040` is a blank.
fn unescape(path: &str) -> String {
    let mut pieces = path.split('\\');
    let mut out = pieces.next().unwrap_or_default().to_owned();
    for piece in pieces {
        let code = piece.get(..3).and_then(|digits| u8::from_str_radix(digits, 8).ok());
        match code {
            Some(code) => {
                out.push(char::from(code));
                out.push_str(&piece[3..]);
            }
            None => out.extend(["\\", piece]),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    const UNLIMITED: &str = "9223372036854771712";
    const V1_MOUNT: &str = "35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory";
    const V2_MOUNT: &str = "30 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate";

    /// The smallest limit where `/proc/self` has these files, and `files` those of control groups.
    fn smallest(groups: &str, mounts: &str, files: &[(&str, &str)]) -> Option<(u64, String)> {
        let root = tempfile::tempdir().unwrap();
        let own = [("proc/self/cgroup", groups), ("proc/self/mountinfo", mounts)];
        for (path, text) in own.iter().chain(files) {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, format!("{text}\n")).unwrap();
        }
        let limits = control_group_limits(root.path());
        limits.into_iter().min_by_key(|limit| limit.bytes).map(|limit| (limit.bytes, limit.source))
    }

    #[expect(clippy::unnecessary_wraps, reason = "compared with what may be absent")]
    fn limit(bytes: u64, source: &str) -> Option<(u64, String)> {
        Some((bytes, format!("the control group {source}")))
    }

    #[test]
    fn the_smallest_limit_up_to_the_root_counts_under_version_2() {
        let groups = "0::/system.slice/slurmstepd.scope/job_7/step_0/user/task_0";
        let job = "sys/fs/cgroup/system.slice/slurmstepd.scope/job_7";
        let of_job = format!("{job}/memory.max");
        let of_task = format!("{job}/step_0/user/task_0/memory.max");
        let of_slice = "sys/fs/cgroup/system.slice/memory.high";
        let files = [(&*of_job, "300000000"), (&*of_task, "max"), (of_slice, "max")];
        let expected = limit(300_000_000, "/system.slice/slurmstepd.scope/job_7 (memory.max)");
        assert_eq!(smallest(groups, V2_MOUNT, &files), expected);
        let files = [(&*of_job, "300000000"), (of_slice, "200000000")];
        assert_eq!(smallest(groups, V2_MOUNT, &files), limit(200_000_000, "/system.slice (memory.high)"));
        assert_eq!(smallest(groups, V2_MOUNT, &[(&*of_job, "max")]), None);
        assert_eq!(smallest(groups, V2_MOUNT, &[]), None, "no group has the controller");
        // A group outside: its name would be a prefix if names were compared as text.
        let outside = [("sys/fs/cgroup/system/memory.max", "1")];
        assert_eq!(smallest(groups, V2_MOUNT, &outside), None);
    }

    #[test]
    fn a_namespace_shows_the_limit_of_its_top_group() {
        let files = [("sys/fs/cgroup/memory.max", "1000")];
        assert_eq!(smallest("0::/", V2_MOUNT, &files), limit(1000, "/ (memory.max)"));
        // A process outside of its namespace.
        assert_eq!(smallest("0::/../other", V2_MOUNT, &files), limit(1000, "/ (memory.max)"));
        // A container's group is mounted at the place of the root, and named as on the host.
        let mounts = "35 31 0:32 /docker/ab /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory";
        let files = [("sys/fs/cgroup/memory/memory.limit_in_bytes", "2000")];
        assert_eq!(smallest("4:memory:/docker/ab", mounts, &files), limit(2000, "/docker/ab (memory.limit_in_bytes)"));
        let files = [("sys/fs/cgroup/memory/a/memory.limit_in_bytes", "2000")];
        let expected = limit(2000, "/docker/ab/a (memory.limit_in_bytes)");
        assert_eq!(smallest("4:memory:/docker/ab/a/b", mounts, &files), expected);
    }

    #[test]
    fn the_smallest_limit_up_to_the_root_counts_under_version_1() {
        // Both versions at once: memory is controlled by version 1.
        let groups = "9:name=systemd:/\n4:cpu,memory:/slurm/uid_0/job_7\n0::/";
        let mounts = format!("{}\n{V1_MOUNT}", V2_MOUNT.replace("/sys/fs/cgroup rw", "/sys/fs/cgroup/unified rw"));
        let own = "sys/fs/cgroup/memory/slurm/uid_0/job_7/memory.limit_in_bytes";
        let above = "sys/fs/cgroup/memory/slurm/uid_0/memory.limit_in_bytes";
        let use_hierarchy = "sys/fs/cgroup/memory/slurm/uid_0/memory.use_hierarchy";
        let statistics = "sys/fs/cgroup/memory/slurm/uid_0/job_7/memory.stat";
        let at = |files: &[(&str, &str)]| smallest(groups, &mounts, files);
        assert_eq!(at(&[(own, "300"), (above, "500")]), limit(300, "/slurm/uid_0/job_7 (memory.limit_in_bytes)"));
        assert_eq!(at(&[(own, UNLIMITED), (above, "500")]), limit(500, "/slurm/uid_0 (memory.limit_in_bytes)"));
        let of_all = "cache 0\nhierarchical_memory_limit 500\nhierarchical_memsw_limit 400";
        let files = [(own, UNLIMITED), (above, "500"), (statistics, of_all)];
        assert_eq!(at(&files), limit(500, "/slurm/uid_0 (memory.limit_in_bytes)"), "the group that sets it");
        let files = [(own, UNLIMITED), (statistics, of_all)];
        assert_eq!(at(&files), limit(500, "/slurm/uid_0/job_7 (hierarchical_memory_limit)"));
        let apart = at(&[(own, "700"), (above, "500"), (use_hierarchy, "0")]);
        assert_eq!(
            apart,
            limit(700, "/slurm/uid_0/job_7 (memory.limit_in_bytes)"),
            "the group above does not count it"
        );
    }

    #[test]
    fn mounts_are_parsed() {
        let escaped = r"35 31 0:32 /a\040b /mnt/c\134d rw shared:9 - cgroup cgroup rw,cpu,memory";
        let expected = Hierarchy { version: Version::V1, top: "/a b".to_owned(), mount_point: r"/mnt/c\d".into() };
        assert_eq!(Hierarchy::parse(escaped), Some(expected));
        for other in [
            "35 31 0:32 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu",
            "36 1 8:1 / / rw - ext4 /dev/sda rw",
            "",
            "- ",
        ] {
            assert_eq!(Hierarchy::parse(other), None, "{other:?}");
        }
        assert_eq!(["a", r"\", r"\04", r"\999x"].map(unescape), ["a", r"\", r"\04", r"\999x"]);
        assert_eq!(smallest("", "", &[]), None);
    }
}
