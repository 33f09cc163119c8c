#!/usr/bin/env bash
# Shows the resources of each kernel in the last build with `--features cuda`: registers, shared memory, spills. `stack`, `spilled` and
# `reloaded` are bytes per thread; `shared` is bytes per block, without the dynamic part.
# usage: scripts/cuda_kernels.sh [TARGET]
set -euo pipefail
case ${1:-} in -*) echo "usage: scripts/cuda_kernels.sh [TARGET]" && exit 0 ;; esac
newest=$(ls -t "${1:-target/cuda}"/release/build/runner-*/out/pointwise.log 2>/dev/null | head -1 || true)
[ -n "$newest" ] || { echo "error: no kernels under ${1:-target/cuda}: first \`make cuda\`" >&2; exit 1; }
row='%-5s  %-14s  %-36s  %9s  %6s  %5s  %7s  %8s%s\n'
# shellcheck disable=SC2059
printf "$row" gpu file kernel registers shared stack spilled reloaded ""
# Reads the assembler's output (`-Xptxas -v`), in which properties of functions that are not inlined stand between those of kernels:
#   ptxas info    : Compiling entry function 'fill_f32' for 'sm_80'
#   ptxas info    : Function properties for fill_f32
#       0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
#   ptxas info    : Used 10 registers, used 0 barriers, 16 bytes smem, 372 bytes cmem[0]
table=$(awk -v row="$row" '
    function number_before(unit) { return match($0, "[0-9]+ " unit) ? substr($0, RSTART) + 0 : 0 }
    /Compiling entry function/ { split($0, part, "\047"); kernel = part[2]; gpu = part[4] }
    /Function properties for/ { is_kernel = $NF == kernel }
    /bytes stack frame/ && is_kernel {
        stack = number_before("bytes stack frame"); spilled = number_before("bytes spill stores"); reloaded = number_before("bytes spill loads")
    }
    /Used [0-9]+ registers/ && kernel != "" {
        mark = (spilled + reloaded > 0) ? "  <- spills" : ""
        file = FILENAME; sub(".*/", "", file); sub("[.]log$", "", file)
        printf row, gpu, file, kernel, number_before("registers"), number_before("bytes smem"), stack, spilled, reloaded, mark
        kernel = ""
    }' "${newest%/*}"/*.log | LC_ALL=C sort)
echo "$table"
echo "$(wc -l <<<"$table") kernels, $(grep -c -e '<- spills' <<<"$table" || true) with spills"
