#!/usr/bin/env bash
# Shows the resources of each kernel in the last build with `--features cuda`: registers, shared memory, spills.
# usage: scripts/cuda_kernels.sh [TARGET]
set -euo pipefail
case ${1:-} in -*) echo "usage: scripts/cuda_kernels.sh [TARGET]" && exit 0 ;; esac
table=$(ls -t "${1:-target/cuda}"/release/build/runner-*/out/kernels.txt 2>/dev/null | head -1 || true)
[ -n "$table" ] || { echo "error: no kernels.txt under ${1:-target/cuda}: first \`make cuda\`" >&2; exit 1; }
cat "$table"
echo "$(($(wc -l <"$table") - 1)) kernels, $(grep -c -e '<- spills' "$table" || true) with spills"
