//! Compares shards with the hashes that were recorded when they were written.

use std::io::{BufReader, Read as _};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use rayon::prelude::*;

use super::card::CardShard;
use super::format::ShardFormat;
use super::request::{Report, ShardEvent};
use crate::error::{DataError, Result};
use crate::progress::Progress;
use runner_files::{if_present, open_regular};

const BLOCK_BYTES: usize = 1 << 20;

/// Reads `shards` of `folder`. Describes the damage of the first shard that changed after it was written. `None` if none did.
///
/// # Errors
/// If a shard cannot be read.
pub(super) fn find_damage(
    folder: &Path,
    format: ShardFormat,
    shards: &[CardShard],
    report: &Report<'_>,
) -> Result<Option<String>> {
    let bytes_of = |shard: &CardShard| format.header_bytes() as u64 + shard.tokens * format.token_type().bytes() as u64;
    let bytes_total = shards.iter().map(bytes_of).sum();
    let bytes_done = AtomicU64::new(0);
    let check = |shard: &CardShard| -> Result<Option<String>> {
        let path = folder.join(&shard.file);
        let Some(file) = if_present(open_regular(&path)).map_err(DataError::io(&path))? else {
            return Ok(Some(format!("{} is missing", shard.file)));
        };
        let found = file.metadata().map_err(DataError::io(&path))?.len();
        if found != bytes_of(shard) {
            let expected = bytes_of(shard);
            return Ok(Some(format!("{} has {found} bytes, expected {expected}", shard.file)));
        }
        let mut reader = BufReader::with_capacity(BLOCK_BYTES, file);
        let mut header = vec![0; format.header_bytes()];
        reader.read_exact(&mut header).map_err(DataError::io(&path))?;
        let (mut hasher, mut block) = (blake3::Hasher::new(), vec![0; BLOCK_BYTES]);
        loop {
            let read = reader.read(&mut block).map_err(DataError::io(&path))?;
            if read == 0 {
                break;
            }
            hasher.update(&block[..read]);
            let bytes_done = bytes_done.fetch_add(read as u64, Ordering::Relaxed) + read as u64;
            report(ShardEvent::Preparing(Progress::Verifying { bytes_done, bytes_total }));
        }
        let is_whole = header == format.header(shard.tokens) && hasher.finalize().to_hex().as_str() == shard.blake3;
        Ok((!is_whole).then(|| format!("{} was damaged or changed after it was written", shard.file)))
    };
    let damage: Vec<Option<String>> = shards.par_iter().map(check).collect::<Result<_>>()?;
    Ok(damage.into_iter().flatten().next())
}
