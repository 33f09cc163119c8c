//! The functions of NCCL that ranks use.

use std::ffi::CStr;
use std::fmt::Display;
use std::os::raw::{c_char, c_int, c_void};

use candle_core::DType;
use cudarc::driver::CudaStream;
use cudarc::nccl::sys;

/// The first version that has `ncclCommRevoke`, as NCCL counts them.
const FIRST_WITH_REVOKE: c_int = 22807;

/// "Not given" in the settings of a communicator.
const UNSET: c_int = c_int::MIN;

/// The length of an id by which ranks find each other.
pub(super) const ID_BYTES: usize = size_of::<sys::ncclUniqueId>();

/// An error of NCCL.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("NCCL: {0}")]
pub(super) struct NcclError(String);

impl NcclError {
    pub(super) fn new(cause: impl Display) -> Self {
        Self(cause.to_string())
    }
}

fn checked(result: sys::ncclResult_t) -> Result<(), NcclError> {
    match result {
        sys::ncclResult_t::ncclSuccess => Ok(()),
        other => Err(NcclError::new(describe_result(other))),
    }
}

#[expect(unsafe_code, reason = "FFI")]
fn describe_result(result: sys::ncclResult_t) -> String {
    // SAFETY: takes any code, and returns a string that is never freed, or null.
    let text = unsafe { sys::ncclGetErrorString(result) };
    if text.is_null() {
        return format!("error {}", result as u32);
    }
    // SAFETY: a C string that is never freed.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

/// A new id, which the first of some ranks sends to the others.
#[expect(unsafe_code, reason = "FFI")]
pub(super) fn unique_id() -> Result<Vec<u8>, NcclError> {
    let mut id = sys::ncclUniqueId { internal: [0; 128] };
    // SAFETY: writes the id, which outlives the call.
    checked(unsafe { sys::ncclGetUniqueId(&raw mut id) })?;
    Ok(id.internal.iter().flat_map(|byte| byte.to_ne_bytes()).collect())
}

/// The type of a tensor's elements, if NCCL knows it.
pub(super) fn element(dtype: DType) -> Option<sys::ncclDataType_t> {
    match dtype {
        DType::F32 => Some(sys::ncclDataType_t::ncclFloat32),
        DType::F64 => Some(sys::ncclDataType_t::ncclFloat64),
        DType::BF16 => Some(sys::ncclDataType_t::ncclBfloat16),
        DType::U32 => Some(sys::ncclDataType_t::ncclUint32),
        _ => None,
    }
}

/// Elements in a device's memory.
#[derive(Debug, Clone, Copy)]
pub(super) struct Place {
    pub(super) address: u64,
    pub(super) count: usize,
    pub(super) element: sys::ncclDataType_t,
}

/// A transfer of places between the members of a communicator, which are numbered.
#[derive(Debug, Clone, Copy)]
pub(super) enum Transfer {
    /// Sums over the members, in place.
    AllReduce,
    /// Sums over the members, to the place of `root`.
    Reduce {
        root: usize,
    },
    /// Copies the place of `root` to all.
    Broadcast {
        root: usize,
    },
    Send {
        to: usize,
    },
    /// Receives what `from` sends next.
    Receive {
        from: usize,
    },
}

/// One communicator of NCCL. Its owner lets one thread at a time use it.
#[derive(Debug)]
pub(super) struct Handle(sys::ncclComm_t);

#[expect(unsafe_code, reason = "FFI")]
// SAFETY: NCCL's communicators are not bound to threads; they are used by one at a time, behind a lock.
unsafe impl Send for Handle {}

impl Handle {
    /// Joins `members` ranks as number `me`, with kernels of at most `blocks` blocks. Returns when all have joined. The context of the
    /// device must be bound to the thread.
    #[expect(unsafe_code, reason = "FFI")]
    pub(super) fn join(id: &[u8], members: usize, me: usize, blocks: usize) -> Result<Self, NcclError> {
        let mut unique = sys::ncclUniqueId { internal: [0; 128] };
        if id.len() != ID_BYTES {
            return Err(NcclError::new(format_args!("an id of {} bytes instead of {ID_BYTES}", id.len())));
        }
        for (to, from) in unique.internal.iter_mut().zip(id) {
            *to = c_char::from_ne_bytes([*from]);
        }
        let mut comm: sys::ncclComm_t = std::ptr::null_mut();
        let mut config = settings(blocks);
        // SAFETY: writes the handle, which outlives the call, as the settings do; the id is passed by value.
        let joined = unsafe {
            sys::ncclCommInitRankConfig(&raw mut comm, members as c_int, unique, me as c_int, &raw mut config)
        };
        checked(joined)?;
        Ok(Self(comm))
    }

    /// # Errors
    /// If an operation has failed since it was started.
    #[expect(unsafe_code, reason = "FFI")]
    pub(super) fn check(&self) -> Result<(), NcclError> {
        let mut state = sys::ncclResult_t::ncclSuccess;
        // SAFETY: the handle is alive; writes one code, which outlives the call.
        checked(unsafe { sys::ncclCommGetAsyncError(self.0, &raw mut state) })?;
        checked(state)
    }

    /// Runs `transfers` as one operation.
    #[expect(unsafe_code, reason = "FFI")]
    pub(super) fn run(&self, transfers: &[(Transfer, Place)], stream: &CudaStream) -> Result<(), NcclError> {
        let (comm, stream, sum) = (self.0, stream.cu_stream().cast(), sys::ncclRedOp_t::ncclSum);
        grouped(|| {
            transfers.iter().try_for_each(|(transfer, Place { address, count, element })| {
                let (count, element) = (*count, *element);
                let at = *address as *mut c_void;
                // SAFETY: the place is on the communicator's device, and its tensor is kept until the stream is behind it.
                checked(unsafe {
                    match *transfer {
                        Transfer::AllReduce => sys::ncclAllReduce(at, at, count, element, sum, comm, stream),
                        Transfer::Reduce { root } => {
                            sys::ncclReduce(at, at, count, element, sum, root as c_int, comm, stream)
                        }
                        Transfer::Broadcast { root } => {
                            sys::ncclBroadcast(at, at, count, element, root as c_int, comm, stream)
                        }
                        Transfer::Send { to } => sys::ncclSend(at, count, element, to as c_int, comm, stream),
                        Transfer::Receive { from } => sys::ncclRecv(at, count, element, from as c_int, comm, stream),
                    }
                })
            })
        })
    }

    /// Stops a handle's operations while another thread may be in a call that does not return. That call then ends with an error, and
    /// the handle can be aborted. Returns false if this version of NCCL can only abort the handle, which frees what that call uses.
    #[expect(unsafe_code, reason = "FFI")]
    pub(super) fn revoke_from_outside(address: usize) -> bool {
        let mut version = 0;
        // SAFETY: writes a number, which outlives the call.
        let known = checked(unsafe { sys::ncclGetVersion(&raw mut version) }).is_ok();
        if !known || version < FIRST_WITH_REVOKE {
            return false;
        }
        // SAFETY: the handle was made by `join` and never ended, because only the caller of this ends it. This frees nothing.
        checked(unsafe { sys::ncclCommRevoke(address as sys::ncclComm_t, 0) }).is_ok()
    }

    /// Aborts a handle while another thread may be in a call that does not return. That call then ends with an error.
    #[expect(unsafe_code, reason = "FFI")]
    pub(super) fn abort_from_outside(address: usize) {
        // SAFETY: the handle was made by `join` and never ended, because only the caller of this ends it. NCCL lets other threads
        // abort an operation that one of them waits for.
        let _ = unsafe { sys::ncclCommAbort(address as sys::ncclComm_t) };
    }

    /// The address for `revoke_from_outside` and `abort_from_outside`.
    pub(super) fn address(&self) -> usize {
        self.0 as usize
    }

    /// Ends the communicator when nothing is under way. May wait for the other members.
    #[expect(unsafe_code, reason = "FFI")]
    pub(super) fn destroy(self) {
        // SAFETY: the handle is alive, and used no more.
        let _ = unsafe { sys::ncclCommDestroy(self.0) };
    }

    /// Ends the communicator, and everything that runs on its stream.
    #[expect(unsafe_code, reason = "FFI")]
    pub(super) fn abort(self) {
        // SAFETY: the handle is alive, and used no more.
        let _ = unsafe { sys::ncclCommAbort(self.0) };
    }
}

/// The settings of a communicator: those of NCCL (`NCCL_CONFIG_INITIALIZER` of nccl.h 2.30), with kernels of at most `blocks` blocks. A
/// library of another version reads as much of them as it knows.
fn settings(blocks: usize) -> sys::ncclConfig_t {
    sys::ncclConfig_t {
        size: size_of::<sys::ncclConfig_t>(),
        magic: 0xcafe_beef,
        version: 23_007,
        blocking: UNSET,
        cgaClusterSize: UNSET,
        minCTAs: UNSET,
        maxCTAs: blocks as c_int,
        netName: std::ptr::null(),
        splitShare: UNSET,
        trafficClass: UNSET,
        commName: std::ptr::null(),
        collnetEnable: UNSET,
        CTAPolicy: UNSET,
        shrinkShare: UNSET,
        nvlsCTAs: UNSET,
        nChannelsPerNetPeer: UNSET,
        nvlinkCentricSched: UNSET,
        graphUsageMode: UNSET,
        numRmaCtx: UNSET,
        maxP2pPeers: UNSET,
    }
}

/// Several calls as one operation.
#[expect(unsafe_code, reason = "FFI")]
fn grouped(calls: impl FnOnce() -> Result<(), NcclError>) -> Result<(), NcclError> {
    // SAFETY: takes nothing; belongs to this thread.
    checked(unsafe { sys::ncclGroupStart() })?;
    let result = calls();
    // SAFETY: closes what was opened on this thread.
    let ended = checked(unsafe { sys::ncclGroupEnd() });
    result.and(ended)
}
