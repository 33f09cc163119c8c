//! Output files that users name.

use std::fs::{self, File, Permissions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use tempfile::NamedTempFile;

use super::file_system::parent_folder;
use super::own::{remove_abandoned, temporary_prefix};
use super::whole_file::{new_temporary_file, put_in_place};

/// The number of symbolic links that Linux follows, too.
const MAX_LINKS: usize = 40;
/// The bits of a mode that say who may read, write and execute.
const PERMISSION_BITS: u32 = 0o777;

/// A file that a user named. It has a temporary name until it is complete. If the path is a symbolic link, the link stays and the file
/// that it names is replaced, as if the file had been opened for writing.
#[derive(Debug)]
pub struct OutputFile {
    temporary: NamedTempFile,
    /// The path without symbolic links at its end.
    target: PathBuf,
    /// The permissions of the file that it replaces. `None`: those of the temporary file.
    permissions: Option<Permissions>,
    replace: bool,
}

impl OutputFile {
    /// Begins the file `path`. Only its owner may read it if `private` is true. Otherwise it gets the permissions of the file that it
    /// replaces, or, if it replaces none, those of new files. Removes what killed processes left of files of this name.
    ///
    /// # Errors
    /// `AlreadyExists` if `path` exists and `replace` is false, even if it is a link that leads nowhere; or if the file cannot be created.
    pub fn create(path: &Path, replace: bool, private: bool) -> io::Result<Self> {
        if !replace && path.symlink_metadata().is_ok() {
            return Err(ErrorKind::AlreadyExists.into());
        }
        let target = Self::target(path)?;
        let folder = parent_folder(&target);
        let replaced = fs::metadata(&target).ok().filter(|_| !private);
        let permissions =
            replaced.map(|metadata| Permissions::from_mode(metadata.permissions().mode() & PERMISSION_BITS));
        // Until the file is complete, only those may read it who may read the file that it replaces.
        let prefix = temporary_prefix(&target);
        remove_abandoned(folder, &prefix, &|path| path.symlink_metadata().is_ok_and(|metadata| metadata.is_file()));
        let temporary = new_temporary_file(folder, &prefix, private || permissions.is_some())?;
        // Without locks in the file system, nothing is removed.
        let _ = temporary.as_file().try_lock();
        Ok(Self { temporary, target, permissions, replace })
    }

    /// The file, for writing.
    pub fn as_file(&self) -> &File {
        self.temporary.as_file()
    }

    /// The temporary name.
    pub fn temporary_path(&self) -> &Path {
        self.temporary.path()
    }

    /// Makes the content durable and gives the file its permissions and its name.
    ///
    /// # Errors
    /// Those of [`put_in_place`]; or if the permissions cannot be set.
    pub fn finish(self) -> io::Result<()> {
        if let Some(permissions) = self.permissions {
            self.temporary.as_file().set_permissions(permissions)?;
        }
        put_in_place(self.temporary, &self.target, self.replace)
    }

    /// The path of the file that an output file `path` creates or replaces: `path`, or what it leads to if it is a symbolic link. The target
    /// may be missing.
    ///
    /// # Errors
    /// `InvalidInput` if it is `-`, which stands for the standard output elsewhere; if a link cannot be read, or links lead to each other.
    pub fn target(path: &Path) -> io::Result<PathBuf> {
        if path.as_os_str() == "-" {
            return Err(io::Error::new(ErrorKind::InvalidInput, "name a file; `./-` is a file with this name"));
        }
        let mut target = path.to_owned();
        for _ in 0..MAX_LINKS {
            match fs::symlink_metadata(&target) {
                // A relative link starts from its own folder.
                Ok(metadata) if metadata.is_symlink() => target = parent_folder(&target).join(fs::read_link(&target)?),
                Ok(_) => return Ok(target),
                Err(error) if error.kind() == ErrorKind::NotFound => return Ok(target),
                Err(error) => return Err(error),
            }
        }
        // `metadata` returns the system's error for a cycle of links.
        fs::metadata(path).map(|_| target)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::io::Write as _;
    use std::os::unix::fs::symlink;
    use std::time::{Duration, SystemTime};

    use super::*;
    use crate::is_temporary_name;

    fn write(path: &Path, text: &str, replace: bool, private: bool) -> io::Result<()> {
        let output = OutputFile::create(path, replace, private)?;
        output.as_file().write_all(text.as_bytes())?;
        output.finish()
    }

    #[test]
    fn a_link_stays_and_its_target_is_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        fs::create_dir(path("data")).unwrap();
        fs::write(path("data/target"), "old").unwrap();
        symlink("data/inner", path("link")).unwrap();
        symlink("target", path("data/inner")).unwrap();
        write(&path("link"), "new", true, false).unwrap();
        assert_eq!(fs::read_to_string(path("data/target")).unwrap(), "new");
        assert_eq!(fs::read_link(path("link")).unwrap(), Path::new("data/inner"));
        assert_eq!(fs::read_link(path("data/inner")).unwrap(), Path::new("target"));
        assert_eq!(fs::read_dir(path("data")).unwrap().count(), 2, "nothing temporary stays");
        let refused = write(&path("link"), "newer", false, false).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::AlreadyExists);
    }

    #[test]
    fn a_link_that_leads_nowhere_creates_its_target_if_it_may_be_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        symlink("target", path("link")).unwrap();
        assert_eq!(write(&path("link"), "new", false, false).unwrap_err().kind(), ErrorKind::AlreadyExists);
        write(&path("link"), "new", true, false).unwrap();
        assert_eq!(fs::read_to_string(path("target")).unwrap(), "new");
        symlink("b", path("a")).unwrap();
        symlink("a", path("b")).unwrap();
        let error = write(&path("a"), "new", true, false).unwrap_err().to_string();
        assert!(error.contains("symbolic links"), "{error}");
    }

    #[test]
    fn a_replaced_file_keeps_its_permissions() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a");
        let mode = || fs::metadata(&path).unwrap().permissions().mode() & 0o777;
        write(&path, "1", false, true).unwrap();
        assert_eq!(mode(), 0o600);
        for kept in [0o600, 0o640, 0o664, 0o444] {
            fs::set_permissions(&path, Permissions::from_mode(kept)).unwrap();
            let text = format!("{kept:o}");
            write(&path, &text, true, false).unwrap();
            assert_eq!((mode(), fs::read_to_string(&path).unwrap()), (kept, text));
        }
        write(&path, "2", true, true).unwrap();
        assert_eq!(mode(), 0o600, "a private text makes the file private");
    }

    #[test]
    fn what_killed_processes_left_of_a_file_is_removed() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        let long_ago = SystemTime::now() - Duration::from_mins(1);
        let leave = |name: &str| {
            fs::write(path(name), "torn").unwrap();
            File::options().write(true).open(path(name)).unwrap().set_modified(long_ago).unwrap();
        };
        // Of this file; of others; of no rule of ours; a folder; and a link.
        for name in [".tmp-a.bin-x1Y2z3", ".tmp-b.bin-x1Y2z3", ".tmp-a1B2c3", ".tmp-a.bin-notes.", ".tmp-a.bin-x1Y2z"] {
            leave(name);
        }
        fs::create_dir(path(".tmp-a.bin-f1F2f3")).unwrap();
        symlink(path(".tmp-b.bin-x1Y2z3"), path(".tmp-a.bin-l1L2l3")).unwrap();
        // One that a process writes, and one that a process has just created.
        leave(".tmp-a.bin-w1W2w3");
        let held = File::open(path(".tmp-a.bin-w1W2w3")).unwrap();
        held.lock().unwrap();
        fs::write(path(".tmp-a.bin-n1N2n3"), "").unwrap();
        let names = || -> BTreeSet<String> {
            fs::read_dir(dir.path()).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect()
        };
        let mut expected = names();
        write(&path("a.bin"), "1", false, false).unwrap();
        expected.remove(".tmp-a.bin-x1Y2z3");
        expected.insert("a.bin".to_owned());
        assert_eq!(names(), expected);
        drop(held);
        let unfinished = OutputFile::create(&path("a.bin"), true, false).unwrap();
        expected.remove(".tmp-a.bin-w1W2w3");
        let name = unfinished.temporary_path().file_name().unwrap().to_str().unwrap().to_owned();
        expected.insert(name.clone());
        assert_eq!(names(), expected);
        assert!(is_temporary_name(name.as_ref(), ".tmp-a.bin-"), "{name}");
        // A name that leaves no room for the prefix.
        write(&path(&"é".repeat(127)), "1", false, false).unwrap();
    }

    #[test]
    fn the_target_of_a_link_is_known_before_it_is_written() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        symlink("data/target", path("link")).unwrap();
        assert_eq!(OutputFile::target(&path("link")).unwrap(), path("data/target"));
        assert_eq!(OutputFile::target(&path("plain")).unwrap(), path("plain"));
        let dash = OutputFile::target(Path::new("-")).unwrap_err();
        assert!(dash.to_string().contains("name a file"), "{dash}");
        assert_eq!(OutputFile::target(Path::new("./-")).unwrap(), Path::new("./-"));
    }
}
