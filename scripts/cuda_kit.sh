#!/usr/bin/env bash
# Makes a folder with what a build with `--features cuda` needs: NVIDIA's compiler and headers. It needs no GPU, no driver and
# none of CUDA's libraries.
#
# usage: scripts/cuda_kit.sh DIR      then: source DIR/env.sh
#
# The toolkit that is installed is taken ($NVCC, $CUDA_HOME, nvcc on the path, /usr/local/cuda) if it is CUDA 12 or newer; else, or
# with CUDA_KIT_WHEELS=1, wheels of cuda_wheels.txt from PyPI (105 MB, 235 MB on disk), which takes Python 3 with pip.
# Does nothing if DIR is complete already. Exit codes: 0 done, 1 there is no compiler and none can be downloaded, 2 wrong request.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# The version of what this script makes: a folder of an older version is made again.
EDITION=1
OLDEST=12
# The newest version that cudarc 0.19.10 declares. A newer toolkit is used as this version.
NEWEST_DECLARED=13.4

fail() {
    local code=$1
    shift
    printf 'error: %s\n' "$@" >&2
    exit "$code"
}

# Prints the version of the nvcc $1, such as 13.0; nothing if it does not run.
version_of() {
    "$1" --version 2>/dev/null | sed -n 's/.*release \([0-9]*\.[0-9]*\).*/\1/p' | head -1
}

# Prints the path of the installed nvcc, or nothing.
installed() {
    local candidate version
    [ "${CUDA_KIT_WHEELS:-}" != 1 ] || return 0
    for candidate in "${NVCC:-}" "${CUDA_HOME:+$CUDA_HOME/bin/nvcc}" "$(command -v nvcc || true)" /usr/local/cuda/bin/nvcc; do
        [ -n "$candidate" ] && [ -x "$candidate" ] || continue
        version=$(version_of "$candidate")
        [ -n "$version" ] || continue
        if [ "${version%%.*}" -ge "$OLDEST" ]; then
            realpath "$candidate"
            return
        fi
        echo "passing over $candidate: CUDA $version, needed is $OLDEST or newer" >&2
    done
}

# Unpacks the wheels into $1/wheels, and prints the path of their nvcc.
from_wheels() {
    local dir=$1 python=${PYTHON:-python3} said=$1/pip.log
    command -v "$python" >/dev/null ||
        fail 1 "no nvcc is installed, and there is no $python to fetch it with: install CUDA's toolkit, or Python 3 with pip"
    if ! "$python" -m pip --version >/dev/null 2>&1; then
        "$python" -m venv "$dir/venv" >"$said" 2>&1 ||
            fail 1 "no nvcc is installed, and $python has neither pip nor venv (Debian: apt-get install python3-pip)"
        python=$dir/venv/bin/python
    fi
    echo "fetching NVIDIA's compiler from PyPI (105 MB)" >&2
    "$python" -m pip install --quiet --disable-pip-version-check --no-deps --only-binary :all: --no-compile --no-input \
        --require-hashes --target "$dir/wheels" -r "$here/cuda_wheels.txt" >"$said" 2>&1 ||
        fail 1 "the wheels of scripts/cuda_wheels.txt cannot be had; pip says:" "$(tail -5 "$said")"
    rm -rf "$dir/venv" "$said"
    local nvcc=$dir/wheels/nvidia/cu13/bin/nvcc
    [ -x "$nvcc" ] || fail 1 "the wheels hold no nvidia/cu13/bin/nvcc"
    echo "$nvcc"
}

[ $# -eq 1 ] && [ -n "$1" ] || fail 2 "usage: scripts/cuda_kit.sh DIR"
case $1 in -*) fail 2 "usage: scripts/cuda_kit.sh DIR" ;; esac
dir=$(realpath -m "$1")
case $dir in *[[:space:]\'\"\$\\:]*) fail 2 "$dir: nvcc and make cannot do with such a name" ;; esac
if [ -f "$dir/env.sh" ] && [ "$(cat "$dir/.cuda-kit")" = "$EDITION" ] && [ -n "$(version_of "$dir/bin/nvcc")" ]; then
    echo "$dir is there already: CUDA $(version_of "$dir/bin/nvcc")"
    exit 0
fi
if [ -e "$dir" ] && [ ! -f "$dir/.cuda-kit" ] && [ -n "$(ls -A "$dir" 2>/dev/null)" ]; then
    fail 2 "$dir is no folder that this script has made: name another one"
fi
command -v cc >/dev/null || fail 1 "no C compiler (cc), which nvcc needs (Debian: apt-get install build-essential)"

mkdir -p "$(dirname "$dir")"
new=$(mktemp -d "$dir.new-XXXXXX")
trap 'rm -rf "$new"' EXIT
echo "$EDITION" >"$new/.cuda-kit"
nvcc=$(installed)
if [ -z "$nvcc" ]; then
    nvcc=$(from_wheels "$new")
    nvcc=$dir/${nvcc#"$new"/}
fi

# nvcc finds its parts beside itself, so it is called by its own path. cudarc would have the linker look in $CUDA_HOME/lib64:
# there is none here, since the program is linked without CUDA's libraries.
mkdir "$new/bin"
cat >"$new/bin/nvcc" <<NVCC
#!/bin/sh
# candle's kernels for quantized models take minutes to compile. Nothing here calls them, and crates/compute/build/shims.c stands in for them.
if [ "\${CARGO_PKG_NAME:-}" = candle-kernels ]; then
    for last in "\$@"; do :; done
    case \$last in *src/moe/*.cu | *src/mmvq_gguf.cu | *src/mmq_gguf/*.cu)
        while [ \$# -gt 1 ] && [ "\$1" != -o ]; do shift; done
        exec cc -c -x c /dev/null -o "\$2"
        ;;
    esac
fi
exec $nvcc "\$@"
NVCC
chmod +x "$new/bin/nvcc"
ln -s "$(dirname "$(dirname "$nvcc")")/include" "$new/include"
cat >"$new/env.sh" <<ENV
# The environment of a build with --features cuda. Written by scripts/cuda_kit.sh.
export CUDA_HOME=$dir CUDA_PATH=$dir CUDA_ROOT=$dir CUDA_TOOLKIT_ROOT_DIR=$dir NVCC=$dir/bin/nvcc
case ":\$PATH:" in *":$dir/bin:"*) ;; *) export PATH=$dir/bin:\$PATH ;; esac
# candle's own kernels: PTX for A100, which newer GPUs translate.
export CUDA_COMPUTE_CAP=\${CUDA_COMPUTE_CAP:-80}
# By default its build takes half of the cores.
export CUDAFORGE_THREADS=\${CUDAFORGE_THREADS:-$(nproc)}
ENV
version=$(version_of "${nvcc/#"$dir"/"$new"}")
if [ "$version" != "$NEWEST_DECLARED" ] && [ "$(printf '%s\n' "$version" "$NEWEST_DECLARED" | sort -V | tail -1)" = "$version" ]; then
    echo "export CUDARC_CUDA_VERSION=\${CUDARC_CUDA_VERSION:-${NEWEST_DECLARED/./0}0}" >>"$new/env.sh"
fi
chmod 755 "$new"
rm -rf "$dir"
mv -T "$new" "$dir"

# It must compile a kernel that includes what candle's include.
probe=$(mktemp -d)
trap 'rm -rf "$probe" "$new"' EXIT
printf '#include <cuda_fp16.h>\n#include <cuda_bf16.h>\n#include <cuda_fp8.h>\n#include <mma.h>\n#include <cuda/std/limits>\n__global__ void k(float *x) { *x = 1; }\n' >"$probe/probe.cu"
if ! "$dir/bin/nvcc" -std=c++17 -arch=sm_80 -ptx -o "$probe/probe.ptx" "$probe/probe.cu" >"$probe/log" 2>&1; then
    rm -f "$dir/env.sh"
    fail 1 "$("$dir/bin/nvcc" --version | tail -2 | head -1) does not compile a kernel:" "$(head -5 "$probe/log")" \
        "a host compiler that it knows can be named: NVCC_CCBIN=g++-13"
fi
echo "$dir: CUDA $(version_of "$dir/bin/nvcc") ($nvcc)"
