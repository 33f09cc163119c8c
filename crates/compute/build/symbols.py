#!/usr/bin/env python3
"""Writes symbols.inc: every function of CUDA's libraries that this program or its dependencies may call.

usage: crates/compute/build/symbols.py      in the workspace folder

Taken are all functions that cudarc declares (of every CUDA version that it knows: what a library lacks is noticed only when it is
called), and those of candle's kernels for quantized models.
"""
import json
import pathlib
import re
import subprocess

# Those that shims.c answers itself.
ANSWERED = {
    "cublasCreate_v2",
    "cublasDestroy_v2",
    "cublasSetStream_v2",
    "curandCreateGenerator",
    "curandDestroyGenerator",
    "curandSetPseudoRandomGeneratorSeed",
    "curandSetStream",
}

LIBRARIES = {"driver": "cuda", "cublas": "cublas", "cublaslt": "cublasLt", "curand": "curand", "nvrtc": "nvrtc", "nccl": "nccl"}


def declared(module):
    text = (module / "sys" / "mod.rs").read_text()
    return set(re.findall(r'extern "C" \{\s*fn (\w+)\(', text))


def main():
    command = ["cargo", "metadata", "--format-version=1", "--offline", "--features=cuda,nccl"]
    metadata = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
    packages = {p["name"]: p for p in metadata["packages"]}
    cudarc, kernels = packages["cudarc"], packages["candle-kernels"]
    source = pathlib.Path(cudarc["manifest_path"]).parent / "src"
    lines = [f"/* Of cudarc {cudarc['version']} and candle-kernels {kernels['version']}; written by build/symbols.py. */"]
    for module, library in LIBRARIES.items():
        lines += [f"SHIM({library}, {name})" for name in sorted(declared(source / module) - ANSWERED)]
    quantized = (pathlib.Path(kernels["manifest_path"]).parent / "src" / "ffi.rs").read_text()
    lines += [f"SHIM(quantized, {name})" for name in sorted(set(re.findall(r"pub fn (\w+)\(", quantized)))]
    pathlib.Path(__file__).with_name("symbols.inc").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
