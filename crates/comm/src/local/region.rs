//! The memory that ranks share: made, attached to, and read from outside.

use std::fmt;
use std::fs::File;
use std::io;
use std::os::fd::{OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use memmap2::{MmapOptions, MmapRaw};

use super::layout::{Header, Layout, SharedType};
use super::rank_status::{RankSnapshot, RankStatus};
use super::wake_signal::WakeSignal;
use runner_spec::topology::{Topology, TopologyError};

const MAGIC: u64 = u64::from_le_bytes(*b"rnrcomm1");

/// Why there is no region, or no place in it.
#[derive(Debug, thiserror::Error)]
pub enum RegionError {
    #[error(transparent)]
    Topology(#[from] TopologyError),
    #[error("{action} {bytes} bytes of shared memory: {source}")]
    Memory { action: &'static str, bytes: usize, source: io::Error },
    #[error("{action} file descriptor {fd}: {source}")]
    Descriptor { action: &'static str, fd: RawFd, source: io::Error },
    #[error("file descriptor {fd} is no region of a run")]
    NotARegion { fd: RawFd },
    #[error("the region was made for another topology")]
    OtherTopology,
    #[error("there is no rank {rank} in a world of {world_size}")]
    NoSuchRank { rank: usize, world_size: usize },
    #[error("rank {rank} is taken")]
    Taken { rank: usize },
}

/// The memory of one run's communication. Nothing of it has a name, so nothing is left behind when its processes end,
/// however they end; pages are touched only when used.
pub struct Region {
    map: MmapRaw,
    pub(super) topology: Topology,
    pub(super) layout: Layout,
}

impl fmt::Debug for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Region")
            .field("topology", &self.topology)
            .field("bytes", &self.layout.bytes)
            .finish_non_exhaustive()
    }
}

impl Region {
    /// For ranks that are threads of this process.
    ///
    /// # Errors
    /// A topology that makes no sense, or memory.
    pub fn anonymous(topology: &Topology) -> Result<Arc<Self>, RegionError> {
        let layout = Layout::new(topology)?;
        let map = MmapOptions::new().len(layout.bytes).no_reserve_swap().map_anon();
        let map = map.map_err(|source| RegionError::Memory { action: "mapping", bytes: layout.bytes, source })?;
        Ok(Self::fresh(MmapRaw::from(map), topology, layout))
    }

    /// For ranks that are processes: hand the descriptor down, they `attach` to its number.
    ///
    /// # Errors
    /// As `anonymous`.
    pub fn shared(topology: &Topology) -> Result<(Arc<Self>, OwnedFd), RegionError> {
        let bytes = Layout::new(topology)?.bytes;
        let file = memory_file(bytes).map_err(|source| RegionError::Memory { action: "making", bytes, source })?;
        Ok((Self::in_file(&file, topology)?, file.into()))
    }

    /// A new region in a file of the right length, all zeroes.
    pub(super) fn in_file(file: &File, topology: &Topology) -> Result<Arc<Self>, RegionError> {
        let layout = Layout::new(topology)?;
        Ok(Self::fresh(map(file, layout.bytes)?, topology, layout))
    }

    fn fresh(map: MmapRaw, topology: &Topology, layout: Layout) -> Arc<Self> {
        let region = Self { map, topology: topology.clone(), layout };
        let header = region.header();
        for (word, value) in header.hash.iter().zip(hash(topology, region.layout.bytes)) {
            word.store(value, Ordering::Relaxed);
        }
        header.magic.store(MAGIC, Ordering::Release);
        Arc::new(region)
    }

    /// The region behind a descriptor that this process inherited. The descriptor itself stays open and untouched.
    ///
    /// # Errors
    /// If it is none, or one of another topology.
    pub fn attach(fd: RawFd, topology: &Topology) -> Result<Arc<Self>, RegionError> {
        let layout = Layout::new(topology)?;
        let failed = |action| move |source| RegionError::Descriptor { action, fd, source };
        let file = File::from(duplicate(fd).map_err(failed("attaching to"))?);
        let length = file.metadata().map_err(failed("asking for the length of"))?.len();
        if length < size_of::<Header>() as u64 {
            return Err(RegionError::NotARegion { fd });
        }
        // The whole of what the file has; whether that is this layout is seen after the header.
        let region = Self { map: map(&file, length as usize)?, topology: topology.clone(), layout };
        let header = region.header();
        if header.magic.load(Ordering::Acquire) != MAGIC {
            return Err(RegionError::NotARegion { fd });
        }
        let found = header.hash.each_ref().map(|w| w.load(Ordering::Relaxed));
        if found != hash(topology, region.layout.bytes) || length != region.layout.bytes as u64 {
            return Err(RegionError::OtherTopology);
        }
        Ok(Arc::new(region))
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

    /// Lets everyone who sleeps look again.
    pub(super) fn wake_all_ranks(&self) {
        for rank in 0..self.world_size() {
            self.status_of(rank).wake_signals.iter().for_each(WakeSignal::wake_all);
        }
    }

    /// The rank that caused the end, if the run was ended.
    #[must_use]
    pub fn aborted(&self) -> Option<usize> {
        self.header().abort.load(Ordering::Acquire).checked_sub(1).map(|r| r as usize)
    }

    /// The request to stop at the next step, of all ranks.
    #[must_use]
    pub fn stop(&self) -> &AtomicBool {
        &self.header().stop
    }

    /// What `rank` is doing; `None` outside the world.
    #[must_use]
    pub fn snapshot(&self, rank: usize) -> Option<RankSnapshot> {
        self.status(rank).map(RankStatus::snapshot)
    }

    /// The status of `rank`, for that rank to write; `None` outside the world.
    #[must_use]
    pub fn status(&self, rank: usize) -> Option<&RankStatus> {
        (rank < self.world_size()).then(|| self.status_of(rank))
    }

    /// The status of a rank that is in the world.
    pub(super) fn status_of(&self, rank: usize) -> &RankStatus {
        debug_assert!(rank < self.world_size());
        self.at(Layout::status(rank))
    }

    fn header(&self) -> &Header {
        self.at(0)
    }

    /// What lies at an offset that the layout gave for a `T`.
    #[expect(unsafe_code, reason = "shared memory")]
    pub(super) fn at<T: SharedType>(&self, offset: usize) -> &T {
        let pointer = self.pointer(offset, size_of::<T>()).cast::<T>();
        debug_assert!(pointer.is_aligned());
        // SAFETY: in the mapping (checked by `pointer`), aligned since the mapping is aligned to pages and the layout to
        // T. T is atomics only (`SharedType`), valid as the zeroes that the region starts with and with any later store,
        // and no plain write goes here: the layout's places are disjoint.
        unsafe { &*pointer }
    }

    /// Where `bytes` plain bytes start; whoever reads or writes them answers for owning them.
    pub(super) fn pointer(&self, offset: usize, bytes: usize) -> *mut u8 {
        assert!(offset + bytes <= self.map.len(), "{bytes} bytes at {offset} lie outside the region");
        self.map.as_mut_ptr().wrapping_add(offset)
    }
}

fn duplicate(fd: RawFd) -> io::Result<OwnedFd> {
    #[expect(unsafe_code, reason = "FFI")]
    // SAFETY: gives a new descriptor or -1, also for numbers that are none.
    let new = unsafe { libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, 3) };
    if new == -1 {
        return Err(io::Error::last_os_error());
    }
    #[expect(unsafe_code, reason = "FFI")]
    // SAFETY: it was just made, and nobody else knows it.
    Ok(unsafe { std::os::fd::FromRawFd::from_raw_fd(new) })
}

fn map(file: &File, bytes: usize) -> Result<MmapRaw, RegionError> {
    let map = MmapOptions::new().len(bytes).map_raw(file);
    map.map_err(|source| RegionError::Memory { action: "mapping", bytes, source })
}

/// Of everything that two processes must agree on.
fn hash(topology: &Topology, bytes: usize) -> [u64; 4] {
    let mut words = vec![topology.world_size, topology.groups.len(), bytes];
    for ranks in &topology.groups {
        words.push(ranks.len());
        words.extend(ranks);
    }
    for c in &topology.channels {
        words.extend([c.from, c.to, c.lane as usize, c.slots, c.slot_bytes]);
    }
    let mut hasher = blake3::Hasher::new();
    for word in words {
        hasher.update(&(word as u64).to_le_bytes());
    }
    let digest = hasher.finalize();
    let (chunks, _) = digest.as_bytes().as_chunks::<8>();
    std::array::from_fn(|i| chunks.get(i).map_or(0, |c| u64::from_le_bytes(*c)))
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
    // SAFETY: it was just made, and nobody else knows it.
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

/// The same in the temporary folder, for systems without such files.
#[cfg(any(test, not(target_os = "linux")))]
pub(super) fn unlinked_file(bytes: usize) -> io::Result<File> {
    let file = tempfile::tempfile()?;
    file.set_len(bytes as u64)?;
    Ok(file)
}
