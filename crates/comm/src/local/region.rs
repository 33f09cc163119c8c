//! The memory that ranks share: a process makes it, ranks attach to it, and the supervisor reads it.

use std::fs::File;
use std::io;
use std::os::fd::{OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use memmap2::{MmapOptions, MmapRaw};

use super::layout::{Header, Layout, SharedType};
use crate::error::JoinError;
use crate::rank_status::{RankSnapshot, RankStatus};
use crate::waiting::WakeSignal;
use runner_spec::topology::Topology;

fn memory_error(action: &str, bytes: usize, error: &io::Error) -> JoinError {
    JoinError::Failed(format!("{action} {bytes} bytes of shared memory: {error}"))
}

/// The memory of one run's communication. It has no name, so nothing is left behind when its processes end, however they end. Pages
/// are touched only when they are used.
#[derive(Debug)]
pub struct Region {
    map: MmapRaw,
    pub(super) topology: Topology,
    pub(super) layout: Layout,
}

impl Region {
    /// A region for ranks that are threads of this process.
    ///
    /// # Errors
    /// If the topology makes no sense, or memory is short.
    pub fn anonymous(topology: &Topology) -> Result<Arc<Self>, JoinError> {
        let layout = Layout::new(topology)?;
        let map = MmapOptions::new().len(layout.bytes).no_reserve_swap().map_anon();
        let map = map.map_err(|error| memory_error("mapping", layout.bytes, &error))?;
        Ok(Arc::new(Self { map: MmapRaw::from(map), topology: topology.clone(), layout }))
    }

    /// A region for ranks that are processes. They inherit the descriptor, and `attach` to its number.
    ///
    /// # Errors
    /// Those of `anonymous`.
    pub fn shared(topology: &Topology) -> Result<(Arc<Self>, OwnedFd), JoinError> {
        let bytes = Layout::new(topology)?.bytes;
        let file = memory_file(bytes).map_err(|error| memory_error("making", bytes, &error))?;
        Ok((Self::in_file(&file, topology)?, file.into()))
    }

    /// The region in a file of the right length. A new region is all zeroes.
    pub(super) fn in_file(file: &File, topology: &Topology) -> Result<Arc<Self>, JoinError> {
        let layout = Layout::new(topology)?;
        let map = MmapOptions::new().len(layout.bytes).map_raw(file);
        let map = map.map_err(|error| memory_error("mapping", layout.bytes, &error))?;
        Ok(Arc::new(Self { map, topology: topology.clone(), layout }))
    }

    /// The region behind a descriptor that this process inherited. The descriptor itself stays open and untouched.
    ///
    /// # Errors
    /// If there is no region behind it, or one of another length than `topology` needs.
    pub fn attach(fd: RawFd, topology: &Topology) -> Result<Arc<Self>, JoinError> {
        let failed =
            |action| move |error: io::Error| JoinError::Failed(format!("{action} file descriptor {fd}: {error}"));
        let file = File::from(duplicate(fd).map_err(failed("attaching to"))?);
        let length = file.metadata().map_err(failed("reading the length of"))?.len();
        if length != Layout::new(topology)?.bytes as u64 {
            return Err(JoinError::Failed(format!("file descriptor {fd} is not a region of this run")));
        }
        Self::in_file(&file, topology)
    }

    pub fn topology(&self) -> &Topology {
        &self.topology
    }

    pub fn world_size(&self) -> usize {
        self.topology.world_size
    }

    /// Ends the run: every wait of every rank returns an error that names `rank`, the cause. The first cause stays.
    pub fn abort(&self, rank: usize) {
        let _ = self.header().abort.compare_exchange(0, rank as u64 + 1, Ordering::SeqCst, Ordering::SeqCst);
        self.wake_all_ranks();
    }

    /// Wakes all ranks that sleep, so that they check again whether they may continue.
    pub(super) fn wake_all_ranks(&self) {
        for rank in 0..self.world_size() {
            self.status_of(rank).wake_signals.iter().for_each(WakeSignal::wake_all);
        }
    }

    /// The rank that caused the end, if the run was ended.
    pub fn aborted(&self) -> Option<usize> {
        self.header().abort.load(Ordering::Acquire).checked_sub(1).map(|r| r as usize)
    }

    /// The request to stop at the next step, of all ranks.
    pub fn stop(&self) -> &AtomicBool {
        &self.header().stop
    }

    /// The status of `rank` at this moment; `None` outside the world.
    pub fn snapshot(&self, rank: usize) -> Option<RankSnapshot> {
        self.status(rank).map(RankStatus::snapshot)
    }

    /// The status of `rank`, for that rank to write; `None` outside the world.
    pub fn status(&self, rank: usize) -> Option<&RankStatus> {
        (rank < self.world_size()).then(|| self.status_of(rank))
    }

    /// The status of a rank that is in the world.
    pub(super) fn status_of(&self, rank: usize) -> &RankStatus {
        debug_assert!(rank < self.world_size());
        self.object_at(Layout::status(rank))
    }

    fn header(&self) -> &Header {
        self.object_at(0)
    }

    /// The `T` at an offset that the layout gave for a `T`.
    #[expect(unsafe_code, reason = "shared memory")]
    pub(super) fn object_at<T: SharedType>(&self, offset: usize) -> &T {
        let pointer = self.pointer(offset, size_of::<T>()).cast::<T>();
        debug_assert!(pointer.is_aligned());
        // SAFETY: in the mapping (checked by `pointer`), aligned since the mapping is aligned to pages and the layout to
        // T. T is atomics only (`SharedType`), valid as the zeroes that the region starts with and with any later store,
        // and no plain write goes here: the layout's places are disjoint.
        unsafe { &*pointer }
    }

    /// The start of `bytes` plain bytes. The caller must own those that it reads or writes.
    pub(super) fn pointer(&self, offset: usize, bytes: usize) -> *mut u8 {
        assert!(offset + bytes <= self.map.len(), "{bytes} bytes at {offset} lie outside the region");
        self.map.as_mut_ptr().wrapping_add(offset)
    }
}

fn duplicate(fd: RawFd) -> io::Result<OwnedFd> {
    #[expect(unsafe_code, reason = "FFI")]
    // SAFETY: returns a new descriptor or -1, also for numbers that are not descriptors.
    let new = unsafe { libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, 3) };
    if new == -1 {
        return Err(io::Error::last_os_error());
    }
    #[expect(unsafe_code, reason = "FFI")]
    // SAFETY: it was just made, and no other code knows it.
    Ok(unsafe { std::os::fd::FromRawFd::from_raw_fd(new) })
}

/// A file of `bytes` zeroes in memory, without a name. Its length is sealed: a mapping of it cannot lose its pages.
#[cfg(target_os = "linux")]
fn memory_file(bytes: usize) -> io::Result<File> {
    #[expect(unsafe_code, reason = "FFI")]
    // SAFETY: the name is a C string; the call gives a new descriptor or -1.
    let fd = unsafe { libc::memfd_create(c"runner".as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING) };
    if fd == -1 {
        return Err(io::Error::last_os_error());
    }
    #[expect(unsafe_code, reason = "FFI")]
    // SAFETY: it was just made, and no other code knows it.
    let file: File = unsafe { std::os::fd::FromRawFd::from_raw_fd(fd) };
    file.set_len(bytes as u64)?;
    #[expect(unsafe_code, reason = "FFI")]
    // SAFETY: sets flags of a descriptor that is open.
    let sealed = unsafe { libc::fcntl(fd, libc::F_ADD_SEALS, libc::F_SEAL_SHRINK | libc::F_SEAL_GROW) };
    if sealed == -1 { Err(io::Error::last_os_error()) } else { Ok(file) }
}

#[cfg(not(target_os = "linux"))]
fn memory_file(bytes: usize) -> io::Result<File> {
    unlinked_file(bytes)
}

/// A file of `bytes` zeroes in the temporary folder, without a name, for systems without files in memory.
#[cfg(any(test, not(target_os = "linux")))]
pub(super) fn unlinked_file(bytes: usize) -> io::Result<File> {
    let file = tempfile::tempfile()?;
    file.set_len(bytes as u64)?;
    Ok(file)
}
