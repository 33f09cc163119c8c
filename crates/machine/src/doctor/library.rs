//! CUDA's libraries: where they are looked for, their versions. The same search as in build/shims.c, by which the program itself calls
//! them.

use std::ffi::{CStr, CString, OsString, c_char, c_int, c_void};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::{env, fs, mem};

use serde::Serialize;

/// Folders that are searched first, separated by colons: a folder of libraries, or `nvidia` of a Python environment.
pub const LIBRARY_FOLDERS: &str = "RUNNER_CUDA_LIBS";

/// One library that a program may load.
#[derive(Debug)]
pub(super) struct Library {
    pub name: &'static str,
    /// File names, the preferred first.
    pub files: &'static [&'static str],
    pub version: Version,
}

/// How a library tells its version.
#[derive(Debug)]
pub(super) enum Version {
    /// `int f(int *)`: 1000 × major + 10 × minor.
    Driver(&'static CStr),
    /// `int f(int what, int *)`, asked for major, minor and patch.
    Property(&'static CStr),
    /// `int f(int *major, int *minor)`
    Pair(&'static CStr),
    /// `int f(int *)`: 10,000 × major + 100 × minor + patch.
    Number(&'static CStr),
    /// `size_t f(void)`, the same number.
    Size(&'static CStr),
    Text(fn(Loaded) -> Option<String>),
}

pub(super) const DRIVER: Library =
    Library { name: "libcuda", files: &["libcuda.so.1"], version: Version::Driver(c"cuDriverGetVersion") };
pub(super) const CUBLAS_LT: Library = Library {
    name: "libcublasLt",
    files: &["libcublasLt.so.13", "libcublasLt.so.12"],
    version: Version::Property(c"cublasLtGetProperty"),
};
pub(super) const NVRTC: Library =
    Library { name: "libnvrtc", files: &["libnvrtc.so.13", "libnvrtc.so.12"], version: Version::Pair(c"nvrtcVersion") };
pub(super) const NCCL: Library =
    Library { name: "libnccl", files: &["libnccl.so.2"], version: Version::Number(c"ncclGetVersion") };
pub(super) const CUDNN: Library =
    Library { name: "libcudnn", files: &["libcudnn.so.9"], version: Version::Size(c"cudnnGetVersion") };
pub(super) const NVML: Library = Library {
    name: "libnvidia-ml",
    files: &["libnvidia-ml.so.1"],
    version: Version::Text(super::driver::nvml_driver_version),
};

/// What became of a library.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct LibraryFacts {
    pub name: &'static str,
    /// As `13.1.0`; `None` if it is not there, or does not tell.
    pub version: Option<String>,
    /// The file that was loaded.
    pub path: Option<PathBuf>,
    /// Why none was.
    pub error: Option<String>,
}

/// A library in this process; it stays to the end.
#[derive(Debug, Clone, Copy)]
pub(super) struct Loaded(*mut c_void);

impl Library {
    /// # Errors
    /// What was looked for, and what the loader said of a file that it did not take.
    pub(super) fn open(&self) -> Result<Loaded, String> {
        let mut refused = Vec::new();
        let listed = env::var_os(LIBRARY_FOLDERS).unwrap_or_default();
        for folder in env::split_paths(&listed).filter(|f| !f.as_os_str().is_empty()) {
            for path in self.files.iter().flat_map(|file| candidates(&folder, file)) {
                match open(path.as_os_str().as_bytes()) {
                    Ok(loaded) => return Ok(loaded),
                    Err(message) => refused.push(message),
                }
            }
        }
        for file in self.files {
            match open(file.as_bytes()) {
                Ok(loaded) => return Ok(loaded),
                // The usual one says no more than that it is not there.
                Err(message) if message.contains("cannot open shared object file: No such file") => {}
                Err(message) => refused.push(message),
            }
        }
        let homes = ["CUDA_HOME", "CUDA_PATH"].into_iter().filter_map(env::var_os).filter(|home| !home.is_empty());
        for home in homes.chain([OsString::from("/usr/local/cuda")]) {
            let paths = self.files.iter().map(|file| Path::new(&home).join("lib64").join(file));
            for path in paths.filter(|path| path.exists()) {
                match open(path.as_os_str().as_bytes()) {
                    Ok(loaded) => return Ok(loaded),
                    Err(message) => refused.push(message),
                }
            }
        }
        let looked = format!("no {}", self.files.join(" and no "));
        Err(if refused.is_empty() { looked } else { refused.join("; ") })
    }

    pub(super) fn facts(&self) -> LibraryFacts {
        match self.open() {
            Ok(loaded) => LibraryFacts {
                name: self.name,
                version: self.version_of(loaded),
                path: loaded.path(self.anchor()),
                error: None,
            },
            Err(error) => LibraryFacts { name: self.name, version: None, path: None, error: Some(error) },
        }
    }

    /// A function that the library has.
    fn anchor(&self) -> &'static CStr {
        match self.version {
            Version::Driver(name)
            | Version::Property(name)
            | Version::Pair(name)
            | Version::Number(name)
            | Version::Size(name) => name,
            Version::Text(_) => c"nvmlInit_v2",
        }
    }

    fn version_of(&self, loaded: Loaded) -> Option<String> {
        type Number = unsafe extern "C" fn(*mut c_int) -> c_int;
        type Property = unsafe extern "C" fn(c_int, *mut c_int) -> c_int;
        type Pair = unsafe extern "C" fn(*mut c_int, *mut c_int) -> c_int;
        type Size = unsafe extern "C" fn() -> usize;
        let (mut a, mut b): (c_int, c_int) = (0, 0);
        #[expect(unsafe_code, reason = "FFI")]
        // SAFETY: the functions have these signatures in all versions of the libraries, and write to numbers that outlive the calls.
        unsafe {
            match self.version {
                Version::Driver(name) => (loaded.function::<Number>(name)?(&raw mut a) == 0)
                    .then(|| format!("{}.{}", a / 1000, a % 1000 / 10)),
                Version::Property(name) => {
                    let ask = loaded.function::<Property>(name)?;
                    let mut parts = Vec::new();
                    for what in 0..3 {
                        if ask(what, &raw mut a) != 0 {
                            return None;
                        }
                        parts.push(a.to_string());
                    }
                    Some(parts.join("."))
                }
                Version::Pair(name) => {
                    (loaded.function::<Pair>(name)?(&raw mut a, &raw mut b) == 0).then(|| format!("{a}.{b}"))
                }
                Version::Number(name) => {
                    (loaded.function::<Number>(name)?(&raw mut a) == 0).then(|| dotted(a as usize))
                }
                Version::Size(name) => Some(dotted(loaded.function::<Size>(name)?())),
                Version::Text(ask) => ask(loaded),
            }
        }
    }
}

/// NCCL's and cuDNN's numbers.
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

fn open(file: &[u8]) -> Result<Loaded, String> {
    let name = CString::new(file).map_err(|e| e.to_string())?;
    #[expect(unsafe_code, reason = "FFI")]
    // SAFETY: reads two C strings that outlive the calls; `dlerror`'s is copied before another call on this thread.
    unsafe {
        let handle = libc::dlopen(name.as_ptr(), libc::RTLD_LAZY);
        if !handle.is_null() {
            return Ok(Loaded(handle));
        }
        let message = libc::dlerror();
        Err(if message.is_null() {
            String::from_utf8_lossy(file).into_owned()
        } else {
            CStr::from_ptr(message).to_string_lossy().into_owned()
        })
    }
}

impl Loaded {
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
        assert_eq!(dotted(91_002), "9.10.2");
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
    fn a_file_that_is_no_library_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.so");
        fs::write(&path, "text").unwrap();
        let message = open(path.as_os_str().as_bytes()).unwrap_err();
        assert!(message.contains("x.so"), "{message}");
    }
}
