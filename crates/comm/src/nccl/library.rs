//! NCCL's functions, as far as they are used, with errors in words.

use std::ffi::CStr;
use std::os::raw::{c_char, c_int, c_void};
use std::thread;
use std::time::Duration;

use candle_core::DType;
use cudarc::driver::CudaStream;
use cudarc::nccl::sys;

/// Between looks at a communicator that is still at work on a call.
const LOOK: Duration = Duration::from_micros(50);

/// Bytes of an id by which ranks find each other.
pub(super) const ID: usize = size_of::<sys::ncclUniqueId>();

/// What NCCL answered that was no success.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("NCCL: {0}")]
pub(super) struct NcclError(pub(super) String);

/// What is still under way is no error: `Handle::settled` waits for that.
fn checked(result: sys::ncclResult_t) -> Result<(), NcclError> {
    match result {
        sys::ncclResult_t::ncclSuccess | sys::ncclResult_t::ncclInProgress => Ok(()),
        other => Err(NcclError(words(other))),
    }
}

#[expect(unsafe_code, reason = "FFI")]
fn words(result: sys::ncclResult_t) -> String {
    // SAFETY: takes any code, and returns a string that is never freed, or null.
    let text = unsafe { sys::ncclGetErrorString(result) };
    if text.is_null() {
        return format!("error {}", result as u32);
    }
    // SAFETY: a C string that is never freed.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

/// The library's version, such as 22703 for 2.27.3.
///
/// # Errors
/// NCCL's words.
#[expect(unsafe_code, reason = "FFI")]
pub fn version() -> Result<i32, String> {
    let mut version: c_int = 0;
    // SAFETY: writes one number, which outlives the call.
    checked(unsafe { sys::ncclGetVersion(&raw mut version) }).map_err(|error| error.to_string())?;
    Ok(version)
}

/// A new id, for the first of some ranks to tell the others.
#[expect(unsafe_code, reason = "FFI")]
pub(super) fn unique_id() -> Result<Vec<u8>, NcclError> {
    let mut id = sys::ncclUniqueId { internal: [0; 128] };
    // SAFETY: writes the id, which outlives the call.
    checked(unsafe { sys::ncclGetUniqueId(&raw mut id) })?;
    Ok(id.internal.iter().flat_map(|byte| byte.to_ne_bytes()).collect())
}

/// Elements that NCCL knows, of tensors that it is given.
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

/// One communicator of NCCL. Whoever has it sees to it that one thread at a time uses it.
#[derive(Debug)]
pub(super) struct Handle(sys::ncclComm_t);

#[expect(unsafe_code, reason = "FFI")]
// SAFETY: NCCL's communicators are not bound to threads; they are used by one at a time, behind a lock.
unsafe impl Send for Handle {}

impl Handle {
    /// Joins `members` ranks as number `me`; returns when all have come, or soon after `given_up` is true where NCCL does not block.
    /// The context of the device must be bound to the thread.
    #[expect(unsafe_code, reason = "FFI")]
    pub(super) fn join(id: &[u8], members: usize, me: usize, given_up: impl Fn() -> bool) -> Result<Self, NcclError> {
        let mut unique = sys::ncclUniqueId { internal: [0; 128] };
        if id.len() != ID {
            return Err(NcclError(format!("an id of {} bytes instead of {ID}", id.len())));
        }
        for (to, from) in unique.internal.iter_mut().zip(id) {
            *to = c_char::from_ne_bytes([*from]);
        }
        let mut comm: sys::ncclComm_t = std::ptr::null_mut();
        // SAFETY: writes the handle, which outlives the call; the id is passed by value.
        checked(unsafe { sys::ncclCommInitRank(&raw mut comm, members as c_int, unique, me as c_int) })?;
        let handle = Self(comm);
        match handle.settled(given_up) {
            Ok(()) => Ok(handle),
            Err(error) => {
                handle.abort();
                Err(error)
            }
        }
    }

    /// Returns when the call before this one is done as far as the host has to do with it. NCCL answers before that where the
    /// user's NCCL_COMM_BLOCKING=0 says so, and takes neither the next call nor an event on its stream until then.
    pub(super) fn settled(&self, given_up: impl Fn() -> bool) -> Result<(), NcclError> {
        // Asked first: who gives up may have freed the communicator.
        while !given_up() {
            if self.state()? != sys::ncclResult_t::ncclInProgress {
                return Ok(());
            }
            thread::sleep(LOOK);
        }
        Err(NcclError("given up while it was under way".to_owned()))
    }

    /// Success, or that something is under way; anything else is an error.
    #[expect(unsafe_code, reason = "FFI")]
    fn state(&self) -> Result<sys::ncclResult_t, NcclError> {
        let mut state = sys::ncclResult_t::ncclSuccess;
        // SAFETY: the handle is alive; writes one code, which outlives the call.
        checked(unsafe { sys::ncclCommGetAsyncError(self.0, &raw mut state) })?;
        checked(state)?;
        Ok(state)
    }

    /// What went wrong since, if anything did.
    pub(super) fn failed(&self) -> Result<(), NcclError> {
        self.state().map(drop)
    }

    /// Sums places over the members, in place, as one operation.
    #[expect(unsafe_code, reason = "FFI")]
    pub(super) fn all_reduce(&self, places: &[Place], stream: &CudaStream) -> Result<(), NcclError> {
        grouped(|| {
            places.iter().try_for_each(|place| {
                let (at, sum) = (place.address as *mut c_void, sys::ncclRedOp_t::ncclSum);
                // SAFETY: the place is on the communicator's device, and its tensor is kept until the stream is behind it.
                checked(unsafe {
                    sys::ncclAllReduce(at, at, place.count, place.element, sum, self.0, stream.cu_stream().cast())
                })
            })
        })
    }

    /// Sums over the members, to the place of `root`.
    #[expect(unsafe_code, reason = "FFI")]
    pub(super) fn reduce(&self, place: &Place, root: usize, stream: &CudaStream) -> Result<(), NcclError> {
        let (at, sum) = (place.address as *mut c_void, sys::ncclRedOp_t::ncclSum);
        let Place { count, element, .. } = *place;
        // SAFETY: as in `all_reduce`.
        checked(unsafe {
            sys::ncclReduce(at, at, count, element, sum, root as c_int, self.0, stream.cu_stream().cast())
        })
    }

    /// Copies `root`'s place to all.
    #[expect(unsafe_code, reason = "FFI")]
    pub(super) fn broadcast(&self, place: &Place, root: usize, stream: &CudaStream) -> Result<(), NcclError> {
        let at = place.address as *mut c_void;
        let Place { count, element, .. } = *place;
        // SAFETY: as in `all_reduce`.
        checked(unsafe { sys::ncclBroadcast(at, at, count, element, root as c_int, self.0, stream.cu_stream().cast()) })
    }

    /// Sends a place to member `to`.
    #[expect(unsafe_code, reason = "FFI")]
    pub(super) fn send(&self, place: &Place, to: usize, stream: &CudaStream) -> Result<(), NcclError> {
        let at = place.address as *const c_void;
        // SAFETY: as in `all_reduce`.
        checked(unsafe {
            sys::ncclSend(at, place.count, place.element, to as c_int, self.0, stream.cu_stream().cast())
        })
    }

    /// Receives from member `from` what it sends next.
    #[expect(unsafe_code, reason = "FFI")]
    pub(super) fn receive(&self, place: &Place, from: usize, stream: &CudaStream) -> Result<(), NcclError> {
        let at = place.address as *mut c_void;
        // SAFETY: as in `all_reduce`.
        checked(unsafe {
            sys::ncclRecv(at, place.count, place.element, from as c_int, self.0, stream.cu_stream().cast())
        })
    }

    /// As `abort`, while another thread may be in a call that does not come back: that call then ends with an error.
    #[expect(unsafe_code, reason = "FFI")]
    pub(super) fn abort_from_outside(address: usize) {
        // SAFETY: the handle was made by `join` and never ended, as whoever calls this is the one that ends it. NCCL lets other
        // threads abort what one of them waits for.
        let _ = unsafe { sys::ncclCommAbort(address as sys::ncclComm_t) };
    }

    /// What `abort_from_outside` takes.
    pub(super) fn address(&self) -> usize {
        self.0 as usize
    }

    /// Ends it where nothing is under way; may wait for the other members.
    #[expect(unsafe_code, reason = "FFI")]
    pub(super) fn destroy(self) {
        // SAFETY: the handle is alive, and used no more.
        let _ = unsafe { sys::ncclCommDestroy(self.0) };
    }

    /// Ends it and whatever is under way on its stream.
    #[expect(unsafe_code, reason = "FFI")]
    pub(super) fn abort(self) {
        // SAFETY: the handle is alive, and used no more.
        let _ = unsafe { sys::ncclCommAbort(self.0) };
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
