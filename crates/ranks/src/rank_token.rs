//! The token by which the ranks that a launcher started recognize each other.
//!
//! Launchers give ranks no secret. The secret comes from `RUNNER_TOKEN`, or, if all ranks are on one machine, from a file of the cache that
//! only the user can read. Otherwise the token follows from the launcher's public variables.

use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use super::launcher_environment::AssignedRank;
use runner_comm::RankToken;
use runner_data::claim_cache;
use runner_files::{private_temporary_file, put_in_place};
use runner_spec::error::{CommandError, Result};
use runner_threads::process;

/// The most bytes of the file that are read.
const MAX_SECRET_BYTES: u64 = 1 << 10;

/// The token of the ranks of `assigned`. `cache` is the folder of prepared data.
///
/// # Errors
/// If the file with the secret cannot be created or read, or other users may know it.
pub fn rank_token(assigned: &AssignedRank, cache: &Path) -> Result<RankToken> {
    let has_file = assigned.secret.is_none() && assigned.is_one_machine && assigned.world_size > 1;
    let secret = if has_file { Some(user_secret(cache)?) } else { assigned.secret.clone() };
    Ok(RankToken::new(&assigned.job, secret.as_deref()))
}

/// The secret of this user, from the file `rank-secret-USER` in `cache`, which is created if it is missing. Users may share a cache.
fn user_secret(cache: &Path) -> Result<String> {
    let path = cache.join(format!("rank-secret-{}", process::user()));
    let secret = match read_secret(&path) {
        Err(missing) if missing.kind() == io::ErrorKind::NotFound => {
            claim_cache(cache)?;
            create_secret(cache, &path).and_then(|()| read_secret(&path))
        }
        read => read,
    };
    secret.map_err(CommandError::io(format!("{}, a secret for ranks of this machine", path.display())))
}

fn read_secret(path: &Path) -> io::Result<String> {
    let file = fs::OpenOptions::new().read(true).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK).open(path)?;
    let metadata = file.metadata()?;
    let refusal = if !metadata.is_file() || metadata.len() > MAX_SECRET_BYTES {
        "it is not a file with a secret"
    } else if metadata.uid() != process::user() {
        "it belongs to another user"
    } else if metadata.mode() & 0o077 != 0 {
        "other users may access it"
    } else {
        let secret = io::read_to_string(file)?;
        if !secret.trim().is_empty() {
            return Ok(secret);
        }
        "it is empty"
    };
    Err(io::Error::other(format!("{refusal}; remove it, and the next run creates a new one")))
}

/// Creates the file, unless another rank creates it first.
fn create_secret(cache: &Path, path: &Path) -> io::Result<()> {
    let mut file = private_temporary_file(cache)?;
    writeln!(file, "{}", RankToken::random_secret()?)?;
    match put_in_place(file, path, false) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};
    use std::path::PathBuf;
    use std::thread;

    use super::*;
    use crate::launcher_environment::assigned_rank;

    fn assigned(text: &str) -> AssignedRank {
        let pairs = text.split_whitespace().map(|pair| pair.split_once('=').unwrap());
        let variables = pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
        assigned_rank(&variables).unwrap().unwrap()
    }

    fn secret_file(cache: &Path) -> PathBuf {
        cache.join(format!("rank-secret-{}", process::user()))
    }

    #[test]
    fn ranks_that_start_together_have_one_secret() {
        let folder = tempfile::tempdir().unwrap();
        let cache = folder.path().join("cache");
        let secrets: Vec<String> = thread::scope(|s| {
            let ranks: Vec<_> = (0..8).map(|_| s.spawn(|| user_secret(&cache).unwrap())).collect();
            ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
        });
        assert!(secrets.iter().all(|secret| *secret == secrets[0] && secret.trim().len() == 64), "{secrets:?}");
        let mode = fs::metadata(secret_file(&cache)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert_eq!(
            fs::read_dir(&cache).unwrap().count(),
            2,
            "the secret and the mark of the cache, and no temporary files"
        );
        assert_ne!(user_secret(&folder.path().join("other")).unwrap(), secrets[0]);
    }

    #[test]
    fn a_file_that_others_may_know_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let (cache, path) = (folder.path(), secret_file(folder.path()));
        user_secret(cache).unwrap();
        for mode in [0o640, 0o604, 0o620] {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            let error = user_secret(cache).unwrap_err().to_string();
            assert!(error.contains("other users may access it; remove it"), "{error}");
        }
        fs::remove_file(&path).unwrap();
        fs::write(cache.join("elsewhere"), "secret").unwrap();
        fs::set_permissions(cache.join("elsewhere"), fs::Permissions::from_mode(0o600)).unwrap();
        symlink(cache.join("elsewhere"), &path).unwrap();
        assert!(user_secret(cache).is_err());
        fs::rename(cache.join("elsewhere"), &path).unwrap();
        assert_eq!(user_secret(cache).unwrap(), "secret");
        fs::write(&path, "").unwrap();
        assert!(user_secret(cache).unwrap_err().to_string().contains("it is empty"));
    }

    #[test]
    fn the_file_is_for_ranks_of_one_machine_without_a_token() {
        let folder = tempfile::tempdir().unwrap();
        let has_file = || secret_file(folder.path()).exists();
        let token = |text: &str| rank_token(&assigned(text), folder.path()).unwrap();
        let several = "RANK=0 WORLD_SIZE=2 MASTER_ADDR=node-1";
        assert!(!token(several).is_secret() && !token("RANK=0 WORLD_SIZE=1").is_secret());
        let given = token(&format!("{several} RUNNER_TOKEN=abc"));
        assert!(given.is_secret() && given != token(several) && !has_file());
        let local = format!("{several} LOCAL_WORLD_SIZE=2");
        assert!(token(&format!("{local} RUNNER_TOKEN=abc")) == given && !has_file());
        assert!(token(&local).is_secret() && token(&local) == token(&local) && has_file());
        assert_ne!(token(&local), token(&format!("{local} TORCHELASTIC_RUN_ID=other")));
    }
}
