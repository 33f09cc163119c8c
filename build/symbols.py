#!/usr/bin/env python3
"""Writes symbols.inc: every function of CUDA's libraries that this program or its dependencies may call.

usage: build/symbols.py [TARGET]      in the project's folder, after `make cuda`; TARGET: its target folder (target/cuda)

Taken are all functions that cudarc declares (of every CUDA version that it knows: what a library lacks is noticed only when it is
called), and what the kernels that candle compiles to object code ask of the CUDA runtime.
"""
import json
import pathlib
import re
import subprocess
import sys

LIBRARIES = {"driver": "cuda", "cublas": "cublas", "cublaslt": "cublasLt", "curand": "curand", "nvrtc": "nvrtc", "nccl": "nccl"}
# Called when the program starts; they are in shims.c.
REGISTRATION = re.compile(r"__cuda(Un)?[Rr]egister")


def declared(module):
    text = (module / "sys" / "mod.rs").read_text()
    return set(re.findall(r'extern "C" \{\s*fn (\w+)\(', text))


def runtime(target):
    archives = sorted(target.glob("release/build/candle-kernels-*/out/libmoe.a"), key=lambda p: p.stat().st_mtime)
    if not archives:
        sys.exit(f"no libmoe.a under {target}: first `make cuda`")
    out = subprocess.run(["nm", "-u", archives[-1]], capture_output=True, text=True, check=True).stdout
    names = set(re.findall(r"\bU (_*cuda\w+)", out))
    return {name for name in names if not REGISTRATION.match(name)}


def main():
    target = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else "target/cuda")
    command = ["cargo", "metadata", "--format-version=1", "--offline", "--features=cuda,nccl"]
    metadata = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
    cudarc = next(p for p in metadata["packages"] if p["name"] == "cudarc")
    source = pathlib.Path(cudarc["manifest_path"]).parent / "src"
    lines = [f"/* Of cudarc {cudarc['version']} and of candle's kernels; written by build/symbols.py. */"]
    for module, library in LIBRARIES.items():
        lines += [f"SHIM({library}, {name})" for name in sorted(declared(source / module))]
    lines += [f"SHIM(cudart, {name})" for name in sorted(runtime(target))]
    pathlib.Path(__file__).with_name("symbols.inc").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
