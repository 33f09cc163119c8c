//! The functions that stand in for CUDA's libraries (crates/compute/build/shims.c), called by a program of C: arguments of all kinds arrive, from many
//! threads at once, and what is missing is printed.

#![cfg(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64")))]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// More arguments than there are registers, of both kinds.
const SIGNATURE: &str =
    "double cuLaunchKernel(long a, double b, int c, float d, char *e, double f, long g, double h, short i,
    double j, long k, double l, double m, double n, long o, double p, double q, long r)";

fn compile(arguments: &[&str]) {
    let status = Command::new("cc").args(["-O2", "-Wall", "-Werror", "-pthread"]).args(arguments).status().unwrap();
    assert!(status.success(), "cc {arguments:?}");
}

/// A folder with a library, and a program that calls it through the shims.
fn lab() -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name).display().to_string();
    let library = format!(
        "{SIGNATURE} {{ return a + 2*b + 3*c + 4*d + 5*e[0] + 6*f + 7*g + 8*h + 9*i + 10*j + 11*k + 12*l + 13*m + 14*n + 15*o
            + 16*p + 17*q + 18*r; }}
        int cuInit(unsigned flags) {{ return flags + 1; }}"
    );
    let program = format!(
        "#include <pthread.h>
        #include <stdio.h>
        #include <string.h>
        {SIGNATURE};
        int cuInit(unsigned), cuDeviceGetCount(int *), ncclCommDestroy(void *), moe_gemm_wmma(void *);
        int cublasCreate_v2(void **), cublasSetStream_v2(void *, void *), cublasDestroy_v2(void *);
        int curandCreateGenerator(void **, int), curandSetStream(void *, void *), curandDestroyGenerator(void *);
        int curandSetPseudoRandomGeneratorSeed(void *, unsigned long long);
        static pthread_barrier_t start;
        static void *call(void *sum) {{
            pthread_barrier_wait(&start);
            for (int i = 0; i < 3; i++) {{
                char e = 5;
                *(double *)sum = cuLaunchKernel(1, 2, 3, 4, &e, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18) + cuInit(i) - i - 1;
            }}
            return NULL;
        }}
        int main(int n, char **words) {{
            for (int i = 1; i < n; i++) {{
                if (!strcmp(words[i], \"function\")) return cuDeviceGetCount(NULL);
                if (!strcmp(words[i], \"library\")) return ncclCommDestroy(NULL);
                if (!strcmp(words[i], \"handles\")) {{
                    void *blas = words, *random = words;
                    return cublasCreate_v2(&blas) + cublasSetStream_v2(blas, words) + curandCreateGenerator(&random, 100)
                        + curandSetStream(random, words) + curandSetPseudoRandomGeneratorSeed(random, 5)
                        + cublasDestroy_v2(blas) + curandDestroyGenerator(random) + (blas || random);
                }}
                if (!strcmp(words[i], \"quantized\")) return moe_gemm_wmma(NULL);
                if (strcmp(words[i], \"call\")) continue;
                pthread_t threads[8];
                double sums[8];
                pthread_barrier_init(&start, NULL, 8);
                for (int t = 0; t < 8; t++) pthread_create(threads + t, NULL, call, sums + t);
                for (int t = 0; t < 8; t++) pthread_join(threads[t], NULL);
                for (int t = 0; t < 8; t++) printf(\"%.0f \", sums[t]);
            }}
            return 0;
        }}"
    );
    fs::write(at("cuda.c"), library).unwrap();
    fs::write(at("program.c"), program).unwrap();
    fs::create_dir_all(at("cu13/lib")).unwrap();
    compile(&["-shared", "-fPIC", "-o", &at("cu13/lib/libcuda.so.1"), &at("cuda.c")]);
    let shims = Path::new(env!("CARGO_MANIFEST_DIR")).join("crates/compute/build/shims.c").display().to_string();
    compile(&["-ffunction-sections", "-Wl,--gc-sections", "-o", &at("program"), &at("program.c"), &shims, "-ldl"]);
    let program = dir.path().join("program");
    (dir, program)
}

fn run(program: &Path, word: &str, libraries: &str) -> Output {
    let mut command = Command::new(program);
    command.arg(word).env("RUNNER_CUDA_LIBS", libraries).env_remove("LD_LIBRARY_PATH").env_remove("CUDA_HOME");
    command.output().unwrap()
}

#[test]
fn functions_are_found_when_they_are_called() {
    let (dir, program) = lab();
    let folder = dir.path().display().to_string();
    let printed = |word: &str, libraries: &str| {
        let output = run(&program, word, libraries);
        let text = String::from_utf8(output.stdout).unwrap() + &String::from_utf8(output.stderr).unwrap();
        (output.status.code(), text)
    };
    assert_eq!(printed("nothing", "/nowhere"), (Some(0), String::new()), "no library is needed to start");
    assert_eq!(printed("handles", "/nowhere"), (Some(0), String::new()), "nor for what candle makes and nothing uses");
    // Σ i² for i in 1..=18: each argument i times its place.
    assert_eq!(printed("call", &folder), (Some(0), "2109 ".repeat(8)));
    assert_eq!(printed("call", &format!("/nowhere::{folder}")).0, Some(0), "the folder that has it counts");

    let (code, text) = printed("function", &folder);
    assert!(
        code == Some(1) && text.contains("cuDeviceGetCount of cuda was called, but the library that was found"),
        "{text}"
    );
    let (code, text) = printed("library", "/nowhere");
    assert!(code == Some(1) && text.contains("libnccl.so.2 in RUNNER_CUDA_LIBS (/nowhere)"), "{text}");
    assert_eq!(text.lines().count(), 1);
    let (code, text) = printed("quantized", &folder);
    assert!(
        code == Some(1) && text.contains("moe_gemm_wmma of quantized was called, but this program is built without it"),
        "{text}"
    );
}
