//! Compiles the CUDA kernels: each `src/kernels/cuda/*.cu` becomes one image for `cuModuleLoadData`, with machine code for A100 and H100 (sm_80,
//! sm_90) and PTX for newer GPUs. Files whose names end with `_sm90` have code for Hopper alone.
//!
//! Written to OUT_DIR: `images.rs` (`pub static IMAGES: &[(&str, &[u8])]`, names without `.cu`), `kernels.rs` (bindings.rs), `tiles.rs`
//! (`const TILES: &[Tiles]`, the sizes of attention's tiles as the sources have them), and for each source the compiler's output, from which
//! `scripts/cuda_kernels.sh` shows the registers, shared memory and spills of each kernel.
//!
//! Divisions, square roots and denormals are exact, as on the CPU; a kernel that wants fast functions names them.

use std::collections::BTreeMap;
use std::env;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use anyhow::{Context as _, Result, bail};

use crate::bindings::{self, Image};
use crate::nvcc::Nvcc;

const SOURCES: &str = "src/kernels/cuda";

const ARCHITECTURES: [&str; 6] = [
    "-gencode",
    "arch=compute_80,code=sm_80",
    "-gencode",
    "arch=compute_90,code=sm_90",
    "-gencode",
    "arch=compute_90,code=compute_90",
];

/// Machine code with Hopper's own instructions, and PTX without kernels, so that all GPUs can load the image.
const HOPPER: [&str; 4] = ["-gencode", "arch=compute_90a,code=sm_90a", "-gencode", "arch=compute_80,code=compute_80"];

const STANDARD: &str = "-std=c++17";

const FLAGS: [&str; 7] = ["-fatbin", "-O3", STANDARD, "-lineinfo", "-Xptxas", "-v", "--Werror=all-warnings"];

pub(crate) fn build() -> Result<()> {
    println!("cargo::rerun-if-changed={SOURCES}");
    println!("cargo::rerun-if-env-changed=NVCC_CCBIN");
    let nvcc = Nvcc::find().context("nvcc was not found")?;
    let out = PathBuf::from(env::var("OUT_DIR").context("OUT_DIR")?);
    let sources = files_with_extension("cu")?;
    compile_all(&nvcc, &sources, &out)?;
    write(&out.join("tiles.rs"), &tiles_source(&sources)?)?;
    let images = sources.iter().map(|source| Image::new(&preprocessed(&nvcc, source)?));
    let images: Vec<Image> = images.collect::<Result<_>>()?;
    write(&out.join("kernels.rs"), &bindings::source(&images)?)?;
    write(&out.join("images.rs"), &images_source(&sources, images.iter().map(Image::number_of_kernels).sum()))
}

/// A source after preprocessing, including the kernels that only Hopper runs.
fn preprocessed(nvcc: &Nvcc, source: &Path) -> Result<String> {
    let mut command = Command::new(&nvcc.path);
    let output = command.args(["-E", STANDARD, "-D__CUDA_ARCH_FEAT_SM90_ALL"]).arg(source).output();
    let output = output.with_context(|| nvcc.path.display().to_string())?;
    if !output.status.success() {
        bail!("{}: nvcc -E: {}\n{}", source.display(), output.status, String::from_utf8_lossy(&output.stderr));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// The text of `tiles.rs`, from the numbers in the lines `ATTENTION_FORWARD(name, …, width, pieces of a warp's or block's rows, keys, …)`,
/// `ATTENTION_KEYS(name, …, width, queries, …)` or `ATTENTION_KEYS_APART(…)`, and `ATTENTION_QUERIES(…)`, with the
/// same arguments as `ATTENTION_FORWARD`.
fn tiles_source(sources: &[PathBuf]) -> Result<String> {
    const KINDS: [(&str, usize); 4] =
        [("ATTENTION_FORWARD(", 0), ("ATTENTION_KEYS(", 1), ("ATTENTION_KEYS_APART(", 1), ("ATTENTION_QUERIES(", 2)];
    let mut kernels: BTreeMap<String, ([Vec<usize>; 3], bool)> = BTreeMap::new();
    for source in sources {
        let text = fs::read_to_string(source).with_context(|| source.display().to_string())?;
        for line in text.lines() {
            let named = KINDS.iter().find_map(|(start, kind)| Some((kind, line.strip_prefix(start)?)));
            let Some((kind, arguments)) = named else { continue };
            let mut words = arguments.trim_end_matches(')').split(", ");
            let name = words.next().unwrap_or_default();
            let (sizes, apart) = kernels.entry(name.to_owned()).or_default();
            sizes[*kind] = words.filter_map(|word| word.parse().ok()).collect();
            *apart |= line.starts_with(KINDS[2].0);
        }
    }
    let mut rows = Vec::new();
    for (name, (sizes, apart)) in kernels {
        let ([forward, keys, queries], Some((arithmetic, _))) =
            (sizes.each_ref().map(Vec::as_slice), name.split_once('_'))
        else {
            bail!("{name} has no arithmetic")
        };
        let (&[width, forward_pieces, forward_keys], &[_, keys], &[_, query_pieces, query_keys]) =
            (forward, keys, queries)
        else {
            bail!("attention {name} lacks a kernel, or a size of its tiles: {forward:?}, {keys:?}, {queries:?}")
        };
        let (hopper, bytes) = (name.ends_with("_sm90"), if arithmetic == "bf16" { 2 } else { 4 });
        let (forward, queries) = ([64 * forward_pieces, forward_keys], [64 * query_pieces, query_keys]);
        let row = format!(
            "Tiles {{ name: {name:?}, arithmetic: {arithmetic:?}, width: {width}, hopper: {hopper}, bytes: {bytes}, \
             forward: {forward:?}, keys: {keys}, apart: {apart}, queries: {queries:?} }},\n"
        );
        rows.push((!hopper, width, row));
    }
    // The first that fits is taken.
    rows.sort();
    let rows: String = rows.into_iter().map(|(.., row)| row).collect();
    Ok(format!("const TILES: &[Tiles] = &[\n{rows}];\n"))
}

/// The files in `SOURCES` with this extension, in order.
fn files_with_extension(extension: &str) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(SOURCES).context(SOURCES)? {
        let path = entry.context(SOURCES)?.path();
        if path.extension().is_some_and(|e| e == extension) {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

/// Compiles the files that have changed, as many at once as cargo allows.
fn compile_all(nvcc: &Nvcc, sources: &[PathBuf], out: &Path) -> Result<()> {
    let workers =
        env::var("NUM_JOBS").ok().and_then(|n| n.parse().ok()).unwrap_or(1_usize).clamp(1, sources.len().max(1));
    let next = AtomicUsize::new(0);
    let work = || {
        let mut mistakes = Vec::new();
        while let Some(source) = sources.get(next.fetch_add(1, Ordering::Relaxed)) {
            mistakes.extend(compile(nvcc, source, out).err().map(|mistake| format!("{mistake:#}")));
        }
        mistakes
    };
    let mistakes: Vec<String> = thread::scope(|scope| {
        let threads: Vec<_> = (0..workers).map(|_| scope.spawn(work)).collect();
        threads.into_iter().flat_map(|t| t.join().unwrap_or_else(|_| vec!["a thread panicked".to_owned()])).collect()
    });
    if mistakes.is_empty() { Ok(()) } else { bail!(mistakes.join("\n")) }
}

/// Compiles a file unless its image was made of the same inputs.
fn compile(nvcc: &Nvcc, source: &Path, out: &Path) -> Result<()> {
    let [image, log, stamp] = ["fatbin", "log", "stamp"].map(|end| out.join(format!("{}.{end}", stem(source))));
    let inputs = inputs_hash(nvcc, source)?;
    if image.exists() && fs::read_to_string(&stamp).is_ok_and(|s| s == inputs) {
        return Ok(());
    }
    write(&stamp, "")?;
    let mut command = Command::new(&nvcc.path);
    command.args(FLAGS).args(architectures(source)).arg("-o").arg(&image).arg(source);
    let output = command.output().with_context(|| nvcc.path.display().to_string())?;
    let messages = String::from_utf8_lossy(&output.stderr).into_owned() + &String::from_utf8_lossy(&output.stdout);
    if !output.status.success() {
        let mistakes: Vec<&str> = messages.lines().filter(|line| !line.starts_with("ptxas info")).collect();
        bail!("{}: nvcc: {}\n{}", source.display(), output.status, mistakes.join("\n"));
    }
    // ptxas's notes C7510 to C7519: it has added a wait or a fence to products of four warps, which is right and slow.
    let serialized: Vec<&str> = messages.lines().filter(|line| line.contains("(C751")).collect();
    if !serialized.is_empty() {
        bail!(
            "{}: products of four warps are slower than they are written:\n{}",
            source.display(),
            serialized.join("\n")
        );
    }
    write(&log, &messages)?;
    write(&stamp, &inputs)
}

fn architectures(source: &Path) -> &'static [&'static str] {
    if stem(source).ends_with("_sm90") { &HOPPER } else { &ARCHITECTURES }
}

/// A hash of the source, all headers, the compiler and the flags.
fn inputs_hash(nvcc: &Nvcc, source: &Path) -> Result<String> {
    let mut hasher = DefaultHasher::new();
    (FLAGS, architectures(source), &nvcc.version).hash(&mut hasher);
    env::var_os("NVCC_CCBIN").hash(&mut hasher);
    for file in files_with_extension("cuh")?.iter().chain([&source.to_owned()]) {
        let text = fs::read(file).with_context(|| file.display().to_string())?;
        (file, text).hash(&mut hasher);
    }
    Ok(format!("{:016x}", hasher.finish()))
}

/// The text of `images.rs`. Each image starts at a multiple of 64 bytes, because the driver reads it in words.
fn images_source(sources: &[PathBuf], kernels: usize) -> String {
    let image = |source: &PathBuf| {
        let name = stem(source);
        let bytes = format!("include_bytes!(concat!(env!(\"OUT_DIR\"), \"/{name}.fatbin\"))");
        format!("    (\"{name}\", {{ static IMAGE: &Image<[u8]> = &Image(*{bytes}); &IMAGE.0 }}),\n")
    };
    let images: String = sources.iter().map(image).collect();
    format!(
        "#[repr(C, align(64))]\nstruct Image<T: ?Sized>(T);\n\n\
         /// Name and image of each file of kernels.\npub static IMAGES: &[(&str, &[u8])] = &[\n{images}];\n\n\
         /// The number of kernels in all of them.\npub const KERNELS: usize = {kernels};\n"
    )
}

fn stem(source: &Path) -> String {
    source.file_stem().unwrap_or_default().to_string_lossy().into_owned()
}

fn write(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text).with_context(|| path.display().to_string())
}
