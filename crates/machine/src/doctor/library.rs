//! CUDA's libraries: where they are looked for, their versions. The same search as in build/shims.c, by which the program itself calls
//! them.

use std::ffi::{CStr, CString, OsStr, OsString, c_char, c_int, c_void};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::{env, fs, mem};

use runner_spec::error::PlainError;
use serde::Serialize;

/// Folders that are searched first, separated by colons: a folder of libraries, or `nvidia` of a Python environment.
pub const LIBRARY_FOLDERS: &str = "RUNNER_CUDA_LIBS";

/// One library that a program may load.
#[derive(Debug)]
pub(super) struct Library {
    pub name: &'static str,
    /// File names, the preferred first.
    pub files: &'static [&'static str],
    /// A function of the library, most often the one that returns its version.
    pub symbol: &'static CStr,
    /// Reads the version with the function `symbol`.
    pub version: fn(LoadedLibrary, &CStr) -> Option<String>,
}

pub(super) const DRIVER: Library = Library {
    name: "libcuda",
    files: &["libcuda.so.1"],
    symbol: c"cuDriverGetVersion",
    version: |loaded, symbol| loaded.number(symbol).map(|n| format!("{}.{}", n / 1000, n % 1000 / 10)),
};
pub(super) const CUBLAS_LT: Library = Library {
    name: "libcublasLt",
    files: &["libcublasLt.so.13", "libcublasLt.so.12"],
    symbol: c"cublasLtGetProperty",
    version: LoadedLibrary::properties,
};
pub(super) const NCCL: Library = Library {
    name: "libnccl",
    files: &["libnccl.so.2"],
    symbol: c"ncclGetVersion",
    version: |loaded, symbol| loaded.number(symbol).map(|n| dotted(n as usize)),
};

/// The result of the search for a library.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct LibraryFacts {
    pub name: &'static str,
    /// Such as `13.1.0`; `None` if the library is missing, or does not report it.
    pub version: Option<String>,
    /// The file that was loaded.
    pub path: Option<PathBuf>,
    /// Why none was.
    pub error: Option<String>,
}

/// A library in this process; it stays to the end.
#[derive(Debug, Clone, Copy)]
pub(super) struct LoadedLibrary(*mut c_void);

impl Library {
    /// Loads the library from the first file that the loader takes: in the listed folders, by its name, then in CUDA's folders.
    ///
    /// # Errors
    /// The names that were looked for, or the loader's messages about files that it refused.
    pub(super) fn open(&self) -> Result<LoadedLibrary, PlainError> {
        let listed = env::var_os(LIBRARY_FOLDERS).unwrap_or_default();
        let folders: Vec<PathBuf> = env::split_paths(&listed).filter(|f| !f.as_os_str().is_empty()).collect();
        let in_folders = folders.iter().flat_map(|folder| self.files.iter().flat_map(|file| candidates(folder, file)));
        let by_name = self.files.iter().map(PathBuf::from);
        let homes = ["CUDA_HOME", "CUDA_PATH"].into_iter().filter_map(env::var_os).filter(|home| !home.is_empty());
        let homes = homes.chain([OsString::from("/usr/local/cuda")]).map(|home| Path::new(&home).join("lib64"));
        let in_homes = homes.flat_map(|folder| self.files.iter().map(move |file| folder.join(file)));
        let mut refused = Vec::new();
        for path in in_folders.chain(by_name).chain(in_homes.filter(|path| path.exists())) {
            let is_name = path.components().count() == 1;
            match open(path.as_os_str().as_bytes()) {
                Ok(loaded) => return Ok(loaded),
                // The usual message about a name reports only that there is no such file.
                Err(message) if is_name && message.contains("cannot open shared object file: No such file") => {}
                Err(message) => refused.push(message),
            }
        }
        let names = || format!("no {}", self.files.join(" and no "));
        Err(PlainError::failure(if refused.is_empty() { names() } else { refused.join("; ") }))
    }

    pub(super) fn facts(&self) -> LibraryFacts {
        let opened = self.open();
        let loaded = opened.as_ref().ok().copied();
        LibraryFacts {
            name: self.name,
            version: loaded.and_then(|loaded| (self.version)(loaded, self.symbol)),
            path: loaded.and_then(|loaded| loaded.path(self.symbol)),
            error: opened.err().map(|error| error.text),
        }
    }
}

/// The version of NCCL as text: 10,000 × major + 100 × minor + patch.
fn dotted(number: usize) -> String {
    format!("{}.{}.{}", number / 10_000, number / 100 % 100, number % 100)
}

/// FOLDER/FILE, and FOLDER/PACKAGE/lib/FILE, those that exist.
pub(super) fn candidates(folder: &Path, file: &str) -> Vec<PathBuf> {
    let mut packages: Vec<PathBuf> =
        fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path().join("lib").join(file)).collect();
    packages.sort();
    packages.insert(0, folder.join(file));
    packages.retain(|path| path.exists());
    packages
}

/// The folders of `listed`, the value of `RUNNER_CUDA_LIBS`, that do not exist: one line each.
pub(super) fn absent_folders(listed: &OsStr) -> Vec<String> {
    let folders = env::split_paths(listed).filter(|folder| !folder.as_os_str().is_empty() && !folder.is_dir());
    folders.map(|folder| format!("{LIBRARY_FOLDERS}: there is no folder {}", folder.display())).collect()
}

fn open(file: &[u8]) -> Result<LoadedLibrary, String> {
    let name = CString::new(file).map_err(|e| e.to_string())?;
    #[expect(unsafe_code, reason = "FFI")]
    // SAFETY: reads two C strings that outlive the calls; `dlerror`'s is copied before another call on this thread.
    unsafe {
        let handle = libc::dlopen(name.as_ptr(), libc::RTLD_LAZY);
        if !handle.is_null() {
            return Ok(LoadedLibrary(handle));
        }
        let message = libc::dlerror();
        Err(if message.is_null() {
            String::from_utf8_lossy(file).into_owned()
        } else {
            CStr::from_ptr(message).to_string_lossy().into_owned()
        })
    }
}

impl LoadedLibrary {
    /// The function `name`.
    ///
    /// # Safety
    /// `F` is the type of a pointer to a function of this signature.
    #[expect(unsafe_code, reason = "FFI")]
    pub(super) unsafe fn function<F: Copy>(self, name: &CStr) -> Option<F> {
        const { assert!(size_of::<F>() == size_of::<*mut c_void>()) };
        // SAFETY: the handle is open, and `F` a function pointer by this function's contract.
        unsafe {
            let address = libc::dlsym(self.0, name.as_ptr());
            (!address.is_null()).then(|| mem::transmute_copy(&address))
        }
    }

    /// The number that `int name(int *)` writes.
    #[expect(unsafe_code, reason = "FFI")]
    fn number(self, name: &CStr) -> Option<c_int> {
        let mut number = 0;
        // SAFETY: the function has this signature in all versions of the library, and writes to a number that outlives the call.
        unsafe {
            let ask: unsafe extern "C" fn(*mut c_int) -> c_int = self.function(name)?;
            (ask(&raw mut number) == 0).then_some(number)
        }
    }

    /// Major, minor and patch, each of which `int name(int which, int *)` writes.
    #[expect(unsafe_code, reason = "FFI")]
    fn properties(self, name: &CStr) -> Option<String> {
        let mut number: c_int = 0;
        // SAFETY: the function has this signature in all versions of the library, and writes to a number that outlives the calls.
        let mut part = |which| unsafe {
            let ask: unsafe extern "C" fn(c_int, *mut c_int) -> c_int = self.function(name)?;
            (ask(which, &raw mut number) == 0).then(|| number.to_string())
        };
        Some([part(0)?, part(1)?, part(2)?].join("."))
    }

    /// The file that has the function `name`.
    fn path(self, name: &CStr) -> Option<PathBuf> {
        #[expect(unsafe_code, reason = "FFI")]
        // SAFETY: `dladdr` fills what it finds, and its name lives as long as the library, which is never closed.
        unsafe {
            let address = libc::dlsym(self.0, name.as_ptr());
            let mut found: libc::Dl_info = mem::zeroed();
            if address.is_null() || libc::dladdr(address, &raw mut found) == 0 || found.dli_fname.is_null() {
                return None;
            }
            let bytes = CStr::from_ptr(found.dli_fname).to_bytes();
            let path = PathBuf::from(OsString::from_vec(bytes.to_vec()));
            Some(path.canonicalize().unwrap_or(path))
        }
    }
}

/// Text that a library wrote into `buffer`.
pub(super) fn text_in(buffer: &[c_char]) -> String {
    let bytes: Vec<u8> = buffer.iter().map(|c| *c as u8).take_while(|b| *b != 0).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_read_as_people_write_them() {
        assert_eq!(dotted(22_203), "2.22.3");
        assert_eq!(text_in(&[72, 50, 0, 9].map(|b: u8| b as c_char)), "H2");
    }

    #[test]
    fn a_python_environments_folder_has_libraries_in_packages() {
        let dir = tempfile::tempdir().unwrap();
        for path in ["a.so.1", "cublas/lib/a.so.1", "cu13/lib/a.so.1", "cu13/lib/b.so.1"] {
            let path = dir.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "").unwrap();
        }
        let found = candidates(dir.path(), "a.so.1");
        let names: Vec<_> = found.iter().map(|p| p.strip_prefix(dir.path()).unwrap().to_str().unwrap()).collect();
        assert_eq!(names, ["a.so.1", "cu13/lib/a.so.1", "cublas/lib/a.so.1"]);
        assert!(candidates(Path::new("/nowhere"), "a").is_empty());
    }

    #[test]
    fn a_file_that_is_not_a_library_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.so");
        fs::write(&path, "text").unwrap();
        let message = open(path.as_os_str().as_bytes()).unwrap_err();
        assert!(message.contains("x.so"), "{message}");
    }
}
