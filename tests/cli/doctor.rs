//! `runner doctor`, on a machine without a GPU, and with CUDA libraries that the tests compile.

#![cfg(target_os = "linux")]

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::sandbox::{Finished, Sandbox};

/// `runner doctor` without the variables that would lead it to real CUDA libraries of this machine. The loader's own folders
/// remain.
fn doctor(arguments: &str, libraries: Option<&Path>) -> Finished {
    let sandbox = Sandbox::new();
    let mut command = sandbox.command(&format!("doctor {arguments}"));
    for name in ["LD_LIBRARY_PATH", "RUNNER_CUDA_LIBS", "CUDA_HOME", "CUDA_PATH"] {
        command.env_remove(name);
    }
    if let Some(folder) = libraries {
        command.env("RUNNER_CUDA_LIBS", folder);
    }
    // Containers of CUDA have such a variable, which would bury the verdicts.
    command.env("NVIDIA_REQUIRE_CUDA", "brand=x,driver>=535 ".repeat(50));
    Finished::of(command.env("RANK", "3\x1b[31m")).expect_code(0)
}

fn report_of(libraries: Option<&Path>) -> Value {
    doctor("--json", libraries).json()
}

fn find<'a>(list: &'a Value, name: &str) -> &'a Value {
    list.as_array().unwrap().iter().find(|entry| entry["name"] == name).unwrap()
}

/// Makes a shared library of C text.
fn library(path: &Path, source: &str) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    let text = path.with_extension("c");
    fs::write(&text, source).unwrap();
    let status = Command::new("cc").args(["-shared", "-fPIC", "-o"]).args([path, &text]).status().unwrap();
    assert!(status.success());
}

#[test]
fn every_machine_trains_on_its_cpu() {
    let report = report_of(None);
    assert_eq!(find(&report["features"], "training on the CPU")["ready"], true);
    assert_eq!(report["environment"]["RANK"], "3\u{1b}[31m");
    let output = doctor("", None);
    assert!(output.stderr.is_empty(), "{}", output.stderr);
    let text = output.stdout;
    assert!(["training on the CPU", "RANK=3"].iter().all(|part| text.contains(part)), "{text}");
    assert!(!text.contains('\u{1b}'), "{text}");
    let long = text.lines().find(|line| line.contains("NVIDIA_REQUIRE_CUDA=brand=x")).unwrap();
    assert!(long.ends_with('…') && long.chars().count() < 130, "{long}");
    assert_eq!(report["environment"]["NVIDIA_REQUIRE_CUDA"].as_str().unwrap().len(), 1000, "JSON has the whole value");
}

#[test]
fn the_instructions_are_those_of_the_version() {
    let sandbox = Sandbox::new();
    for method in ["", "f32"] {
        let output = |arguments: &str| {
            let mut command = sandbox.command(arguments);
            Finished::of(command.env("RUNNER_BF16_PRODUCTS", method)).expect_code(0)
        };
        let cpu = output("doctor --json").json()["cpu"].clone();
        let [vectors, products, bf16] = ["vector_instructions", "matmul_instructions", "bf16_matmul_instructions"]
            .map(|name| cpu[name].as_str().unwrap());
        let line = format!("instructions: vectors {vectors}, matrix products {products}, bf16 products {bf16}\n");
        assert!(output("--version").stdout.contains(&line), "{line}");
        assert!(output("doctor").stdout.contains(&line), "{line}");
        let with_f32 = if vectors == "baseline" { "baseline" } else { "FMA" };
        assert!(method.is_empty() || bf16 == with_f32, "{line}");
    }
}

#[test]
fn a_folder_that_does_not_exist_is_noted() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x");
    let note = format!("note: RUNNER_CUDA_LIBS: there is no folder {}", path.display());
    let text = doctor("", Some(&path)).stdout;
    assert!(text.contains(&note), "{text}");
    assert_eq!(report_of(Some(folder.path()))["notes"], serde_json::json!([]));
}

#[test]
fn names_what_is_missing_and_how_to_install_it() {
    let report = report_of(None);
    for name in ["training on one GPU", "training on several GPUs (NCCL)"] {
        let feature = find(&report["features"], name);
        let missing = feature["missing"].as_array().unwrap();
        assert_eq!(feature["ready"], missing.is_empty());
        for lack in missing {
            assert!(!lack["what"].as_str().unwrap().is_empty() && !lack["mend"].as_str().unwrap().is_empty());
        }
        let says = |part: &str| missing.iter().any(|lack| lack["what"].as_str().unwrap().contains(part));
        assert_eq!(says("this build has no CUDA"), !cfg!(feature = "cuda"));
    }
}

/// A driver with two GPUs, and libraries where a Python environment has them.
#[test]
fn libraries_are_found_where_the_variable_says() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    library(
        &at("libcuda.so.1"),
        r#"#include <string.h>
int cuInit(unsigned flags) { return flags; }
int cuDriverGetVersion(int *v) { *v = 13010; return 0; }
int cuGetErrorName(int e, const char **name) { *name = "CUDA_ERROR_OF_TEST"; return 0; }
int cuDeviceGetCount(int *n) { *n = 2; return 0; }
int cuDeviceGet(int *d, int i) { *d = i; return 0; }
int cuDeviceGetName(char *s, int n, int d) { strncpy(s, d ? "Small\033[31m" : "Large", n); return 0; }
int cuDeviceTotalMem_v2(size_t *n, int d) { *n = (size_t)(d ? 16 : 80) << 30; return 0; }
int cuDeviceGetAttribute(int *v, int which, int d) { *v = which == 75 ? (d ? 7 : 9) : which == 76 ? (d ? 5 : 0) : 132; return 0; }
"#,
    );
    let property = |name: &str| format!("int {name}(int what, int *v) {{ *v = 13 - what; return 0; }}");
    library(&at("cu13/lib/libcublasLt.so.12"), &property("cublasLtGetProperty"));
    library(&at("nccl/lib/libnccl.so.2"), "int ncclGetVersion(int *v) { *v = 22203; return 0; }");
    let report = report_of(Some(dir.path()));
    assert_eq!(report["driver"]["cuda"], "13.1");
    assert_eq!(report["driver"]["error"], Value::Null);
    let gpus = report["driver"]["gpus"].as_array().unwrap();
    assert_eq!(gpus[0]["name"], "Large");
    assert_eq!(gpus[0]["memory_bytes"], 80_u64 << 30);
    assert_eq!(gpus[1]["compute_capability"], serde_json::json!({"major": 7, "minor": 5}));
    assert_eq!(find(&report["libraries"], "libcublasLt")["version"], "13.12.11");
    assert_eq!(find(&report["libraries"], "libnccl")["version"], "2.22.3");
    let path = find(&report["libraries"], "libcublasLt")["path"].as_str().unwrap();
    assert!(path.ends_with("cu13/lib/libcublasLt.so.12"), "{path}");
    let several = &find(&report["features"], "training on several GPUs (NCCL)")["missing"];
    let lacks: Vec<&str> = several.as_array().unwrap().iter().map(|lack| lack["what"].as_str().unwrap()).collect();
    assert!(lacks.iter().any(|what| what.contains("compute capability 7.5")), "{lacks:?}");
    assert!(!lacks.iter().any(|what| what.contains("libnccl")), "{lacks:?}");
    let one = &find(&report["features"], "training on one GPU")["missing"];
    assert!(!one.to_string().contains("compute capability"), "the other GPU will do: {one}");
    let text = doctor("", Some(dir.path())).stdout;
    assert!(text.contains("80.0 GiB") && !text.contains('\u{1b}'), "{text}");

    library(&at("libcuda.so.1"), "int cuInit(unsigned f) { return 803; }");
    let error = report_of(Some(dir.path()))["driver"]["error"].to_string();
    assert!(error.contains("libcuda.so.1 has no cuDeviceGetCount"), "{error}");
}
