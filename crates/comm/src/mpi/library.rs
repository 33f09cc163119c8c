//! The MPI library of the launcher, loaded at run time, so that one program runs under Open MPI, MPICH and its relatives, and libraries
//! with the standard ABI of MPI 5.

use std::env;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::mem;
use std::ptr;

/// The file names of each family of libraries. Intel MPI and Cray MPICH have the name and the ABI of MPICH.
const OPEN_MPI: [&str; 1] = ["libmpi.so.40"];
const MPICH: [&str; 2] = ["libmpi.so.12", "libmpich.so.12"];
const STANDARD: [&str; 2] = ["libmpi_abi.so.1", "libmpi_abi.so.0"];

/// The longest text that a function of any library writes.
const MAX_TEXT_BYTES: usize = 8192;

/// Space for a status of any library.
type Status = [c_int; 16];

/// What differs between the binary interfaces of libraries. `H` is a handle: a number in MPICH's, as large as a pointer in the others.
#[derive(Debug, Clone, Copy)]
struct Constants<H> {
    world: H,
    byte: H,
    errors_return: H,
    any_source: c_int,
    /// The index of the source in a status.
    source: usize,
    /// The level of threads at which only the thread that started MPI calls it.
    funneled: c_int,
}

/// The library of one of the two kinds of handles.
pub(super) enum Library {
    Numbers(Mpi<c_int>),
    Pointers(Mpi<usize>),
}

/// A started library. All calls are made by the thread that started it.
pub(super) struct Mpi<H> {
    constants: Constants<H>,
    functions: Functions<H>,
}

/// A call that failed, with the library's text.
#[derive(Debug, thiserror::Error)]
#[error("{function} failed: {text}")]
pub(super) struct MpiError {
    function: &'static str,
    text: String,
}

type Code = c_int;

/// The functions in use, with the standard's signatures.
struct Functions<H> {
    init: unsafe extern "C" fn(*mut c_int, *mut *mut *mut c_char, c_int, *mut c_int) -> Code,
    finalize: unsafe extern "C" fn() -> Code,
    rank: unsafe extern "C" fn(H, *mut c_int) -> Code,
    size: unsafe extern "C" fn(H, *mut c_int) -> Code,
    set_error_handler: unsafe extern "C" fn(H, H) -> Code,
    error_text: unsafe extern "C" fn(c_int, *mut c_char, *mut c_int) -> Code,
    processor_name: unsafe extern "C" fn(*mut c_char, *mut c_int) -> Code,
    broadcast: unsafe extern "C" fn(*mut c_void, c_int, H, c_int, H) -> Code,
    send: unsafe extern "C" fn(*const c_void, c_int, H, c_int, c_int, H, *mut H) -> Code,
    probe: unsafe extern "C" fn(c_int, c_int, H, *mut c_int, *mut H, *mut Status) -> Code,
    count: unsafe extern "C" fn(*const Status, H, *mut c_int) -> Code,
    receive: unsafe extern "C" fn(*mut c_void, c_int, H, *mut H, *mut H) -> Code,
    test: unsafe extern "C" fn(*mut H, *mut c_int, *mut Status) -> Code,
}

/// An open file of a library. It stays open to the end of the process.
#[derive(Clone, Copy)]
struct LoadedFile(*mut c_void);

impl LoadedFile {
    #[expect(unsafe_code, reason = "FFI")]
    fn open(name: &str) -> Option<Self> {
        let name = CString::new(name).ok()?;
        // SAFETY: the name outlives the call. Open MPI's plugins need its symbols, hence RTLD_GLOBAL.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_GLOBAL) };
        (!handle.is_null()).then_some(Self(handle))
    }

    /// The address of a symbol.
    #[expect(unsafe_code, reason = "FFI")]
    fn address(self, name: &CStr) -> Result<usize, String> {
        // SAFETY: the handle is open, and the name outlives the call.
        let address = unsafe { libc::dlsym(self.0, name.as_ptr()) };
        if address.is_null() {
            return Err(format!("the MPI library has no {}", name.to_string_lossy()));
        }
        Ok(address as usize)
    }

    /// The function `name`.
    ///
    /// # Safety
    /// `F` is the type of a pointer to a function of this signature.
    #[expect(unsafe_code, reason = "FFI")]
    unsafe fn function<F: Copy>(self, name: &CStr) -> Result<F, String> {
        const { assert!(size_of::<F>() == size_of::<usize>()) };
        let address = self.address(name)?;
        // SAFETY: `F` is a function pointer by this function's contract.
        Ok(unsafe { mem::transmute_copy(&address) })
    }
}

/// The families of libraries to look for. Those of the launcher come first: its variables show which it is.
fn candidates(has_variable: impl Fn(&str) -> bool) -> Vec<&'static str> {
    let of_open_mpi = has_variable("OMPI_COMM_WORLD_RANK") || !has_variable("PMI_RANK");
    let [first, second] = if of_open_mpi { [&OPEN_MPI[..], &MPICH] } else { [&MPICH[..], &OPEN_MPI] };
    [first, second, &STANDARD].concat()
}

impl Library {
    /// Loads the library of the launcher that started this process.
    ///
    /// # Errors
    /// If there is none, or it lacks a function.
    pub(super) fn load() -> Result<Self, String> {
        let names = candidates(|name| env::var_os(name).is_some());
        let Some((name, file)) = names.iter().find_map(|name| Some((*name, LoadedFile::open(name)?))) else {
            return Err(format!(
                "no MPI library found ({}); install the launcher's, or set LD_LIBRARY_PATH",
                names.join(", ")
            ));
        };
        let open_mpis_world = file.address(c"ompi_mpi_comm_world");
        if MPICH.contains(&name) && open_mpis_world.is_err() {
            let constants = Constants {
                world: 0x4400_0000,
                byte: 0x4c00_010d,
                errors_return: 0x5400_0001,
                any_source: -2,
                source: 2,
                funneled: 1,
            };
            return Ok(Self::Numbers(Mpi { constants, functions: Functions::load(file)? }));
        }
        let constants = if STANDARD.contains(&name) {
            Constants { world: 0x101, byte: 0x247, errors_return: 0x143, any_source: -1, source: 0, funneled: 1024 }
        } else {
            Constants {
                world: open_mpis_world?,
                byte: file.address(c"ompi_mpi_byte")?,
                errors_return: file.address(c"ompi_mpi_errors_return")?,
                any_source: -1,
                source: 0,
                funneled: 1,
            }
        };
        Ok(Self::Pointers(Mpi { constants, functions: Functions::load(file)? }))
    }
}

impl<H> Functions<H> {
    #[expect(unsafe_code, reason = "FFI")]
    fn load(file: LoadedFile) -> Result<Self, String> {
        // SAFETY: the MPI standard gives each function its signature.
        unsafe {
            Ok(Self {
                init: file.function(c"MPI_Init_thread")?,
                finalize: file.function(c"MPI_Finalize")?,
                rank: file.function(c"MPI_Comm_rank")?,
                size: file.function(c"MPI_Comm_size")?,
                set_error_handler: file.function(c"MPI_Comm_set_errhandler")?,
                error_text: file.function(c"MPI_Error_string")?,
                processor_name: file.function(c"MPI_Get_processor_name")?,
                broadcast: file.function(c"MPI_Bcast")?,
                send: file.function(c"MPI_Isend")?,
                probe: file.function(c"MPI_Improbe")?,
                count: file.function(c"MPI_Get_count")?,
                receive: file.function(c"MPI_Imrecv")?,
                test: file.function(c"MPI_Test")?,
            })
        }
    }
}

/// Bytes that the library reads or writes until the transfer has ended.
pub(super) struct Transfer<H> {
    request: H,
    bytes: Option<Vec<u8>>,
}

impl<H> Transfer<H> {
    /// The bytes of a transfer that has ended.
    pub(super) fn into_bytes(mut self) -> Vec<u8> {
        self.bytes.take().unwrap_or_default()
    }
}

impl<H> Drop for Transfer<H> {
    /// The library may still use the bytes of a transfer that was given up, which is when the process ends.
    fn drop(&mut self) {
        mem::forget(self.bytes.take());
    }
}

#[expect(
    unsafe_code,
    reason = "FFI: each pointer is to a value or buffer that outlives the call, or as long as the library uses it"
)]
impl<H: Copy + Default> Mpi<H> {
    /// Starts the library for the calling thread. Returns this process's rank and the number of ranks.
    pub(super) fn start(&self) -> Result<(usize, usize), MpiError> {
        let Constants { world, errors_return, funneled, .. } = self.constants;
        let (mut provided, mut rank, mut size) = (0, 0, 0);
        // SAFETY: the standard allows null pointers for the arguments of the program.
        let started = unsafe { (self.functions.init)(ptr::null_mut(), ptr::null_mut(), funneled, &raw mut provided) };
        self.check("MPI_Init_thread", started)?;
        if provided < funneled {
            let text = "the library does not support programs with several threads".to_owned();
            return Err(MpiError { function: "MPI_Init_thread", text });
        }
        // SAFETY: see above.
        self.check("MPI_Comm_set_errhandler", unsafe { (self.functions.set_error_handler)(world, errors_return) })?;
        // SAFETY: see above.
        self.check("MPI_Comm_rank", unsafe { (self.functions.rank)(world, &raw mut rank) })?;
        // SAFETY: see above.
        self.check("MPI_Comm_size", unsafe { (self.functions.size)(world, &raw mut size) })?;
        Ok((rank as usize, size as usize))
    }

    /// Ends the library, once all ranks do the same. Only the end of the process may follow.
    pub(super) fn finalize(&self) -> Result<(), MpiError> {
        // SAFETY: no transfer is under way.
        self.check("MPI_Finalize", unsafe { (self.functions.finalize)() })
    }

    /// The name of this machine.
    pub(super) fn processor_name(&self) -> Result<String, MpiError> {
        let (mut text, mut length) = ([0_u8; MAX_TEXT_BYTES], 0);
        // SAFETY: no library's names are longer.
        let code = unsafe { (self.functions.processor_name)(text.as_mut_ptr().cast(), &raw mut length) };
        self.check("MPI_Get_processor_name", code)?;
        Ok(text_of(&text))
    }

    /// Copies the bytes of rank 0 to all ranks.
    pub(super) fn broadcast(&self, bytes: &mut [u8]) -> Result<(), MpiError> {
        let Constants { world, byte, .. } = self.constants;
        let (start, count) = (bytes.as_mut_ptr().cast(), bytes.len() as c_int);
        // SAFETY: the call ends when the bytes were copied.
        self.check("MPI_Bcast", unsafe { (self.functions.broadcast)(start, count, byte, 0, world) })
    }

    /// Starts to send `bytes`. The messages to a rank arrive in the order in which they were started.
    pub(super) fn send(&self, to: usize, bytes: Vec<u8>) -> Result<Transfer<H>, MpiError> {
        let Constants { world, byte, .. } = self.constants;
        let Ok(count) = c_int::try_from(bytes.len()) else {
            let text = format!("a message of {} bytes is longer than 2 GiB", bytes.len());
            return Err(MpiError { function: "MPI_Isend", text });
        };
        let mut request = H::default();
        let start = bytes.as_ptr().cast();
        // SAFETY: the transfer keeps the bytes.
        let code = unsafe { (self.functions.send)(start, count, byte, to as c_int, 0, world, &raw mut request) };
        let transfer = Transfer { request, bytes: Some(bytes) };
        self.check("MPI_Isend", code)?;
        Ok(transfer)
    }

    /// Starts to receive the next message, if one has arrived. Returns the rank that sent it.
    pub(super) fn receive(&self) -> Result<Option<(usize, Transfer<H>)>, MpiError> {
        let Constants { world, byte, any_source, source, .. } = self.constants;
        let (mut has_arrived, mut message, mut status, mut count) = (0, H::default(), Status::default(), 0);
        // SAFETY: the space for the status is larger than that of any library.
        let code = unsafe {
            (self.functions.probe)(any_source, 0, world, &raw mut has_arrived, &raw mut message, &raw mut status)
        };
        self.check("MPI_Improbe", code)?;
        if has_arrived == 0 {
            return Ok(None);
        }
        // SAFETY: see above.
        self.check("MPI_Get_count", unsafe { (self.functions.count)(&raw const status, byte, &raw mut count) })?;
        let mut bytes = vec![0_u8; count.max(0) as usize];
        let mut request = H::default();
        let start = bytes.as_mut_ptr().cast();
        // SAFETY: the transfer keeps the bytes, of which there are as many as the message has.
        let code = unsafe { (self.functions.receive)(start, count, byte, &raw mut message, &raw mut request) };
        let transfer = Transfer { request, bytes: Some(bytes) };
        self.check("MPI_Imrecv", code)?;
        Ok(Some((status[source] as usize, transfer)))
    }

    /// True if the transfer has ended. Must not be called again after that.
    pub(super) fn has_ended(&self, transfer: &mut Transfer<H>) -> Result<bool, MpiError> {
        let (mut has_ended, mut status) = (0, Status::default());
        // SAFETY: see `receive`.
        let code = unsafe { (self.functions.test)(&raw mut transfer.request, &raw mut has_ended, &raw mut status) };
        self.check("MPI_Test", code)?;
        Ok(has_ended != 0)
    }

    fn check(&self, function: &'static str, code: Code) -> Result<(), MpiError> {
        if code == 0 {
            return Ok(());
        }
        let (mut text, mut length) = ([0_u8; MAX_TEXT_BYTES], 0);
        // SAFETY: no library's texts are longer.
        unsafe { (self.functions.error_text)(code, text.as_mut_ptr().cast(), &raw mut length) };
        Err(MpiError { function, text: text_of(&text) })
    }
}

/// The text before the first zero.
fn text_of(bytes: &[u8]) -> String {
    bytes.split(|byte| *byte == 0).next().map(String::from_utf8_lossy).unwrap_or_default().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_launchers_own_library_comes_first() {
        let first = |set: &'static [&'static str]| candidates(|name| set.contains(&name))[0];
        assert_eq!(first(&["OMPI_COMM_WORLD_RANK", "PMIX_RANK"]), "libmpi.so.40");
        assert_eq!(first(&["PMI_RANK"]), "libmpi.so.12");
        assert_eq!(first(&["PMIX_RANK", "SLURM_PROCID"]), "libmpi.so.40");
    }
}
