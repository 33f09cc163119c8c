//! With the feature `cuda`: compiles the kernels.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    if env::var_os("CARGO_FEATURE_CUDA").is_none() {
        return;
    }
    let sources = Path::new("src/kernels/cuda");
    println!("cargo::rerun-if-changed={}", sources.display());
    let out = PathBuf::from(env::var("OUT_DIR").unwrap());
    let mut list = String::from("pub static IMAGES: &[(&str, &[u8])] = &[\n");
    let mut files: Vec<PathBuf> = fs::read_dir(sources).unwrap().map(|e| e.unwrap().path()).collect();
    files.sort();
    for source in files.iter().filter(|f| f.extension().is_some_and(|e| e == "cu")) {
        let name = source.file_stem().unwrap().to_str().unwrap();
        let image = out.join(format!("{name}.fatbin"));
        let status = Command::new("nvcc")
            .args(["-std=c++17", "-O3", "-lineinfo", "-fatbin", "-Xptxas", "-v"])
            .args(["-gencode", "arch=compute_80,code=sm_80", "-gencode", "arch=compute_90,code=sm_90"])
            .args(["-gencode", "arch=compute_90,code=compute_90"])
            .arg(source)
            .arg("-o")
            .arg(&image)
            .status()
            .unwrap();
        assert!(status.success(), "nvcc could not compile {}", source.display());
        writeln!(list, "    ({name:?}, include_bytes!({:?})),", image).unwrap();
    }
    list.push_str("];\n");
    fs::write(out.join("images.rs"), list).unwrap();
}
