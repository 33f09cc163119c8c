#!/usr/bin/env bash
# Makes a folder with everything that checks and measures this program on a machine with a GPU, and DIR.tar.gz of it.
#
# usage: scripts/gpu_bundle.sh KIT TARGET DIR [DATA]      after `make cuda`, which makes KIT and TARGET/release/runner
#
# DATA is a folder with Tiny Shakespeare (input.txt or tinyshakespeare.txt) and GPT-2's vocab.json and merges.txt (there or in
# gpt2-tokenizer/), which the bundle contains as data/. Exit codes: 0 done, 1 something is missing or the folder is too large, 2 wrong request.
set -euo pipefail

LARGEST=60000000
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"

fail() {
    echo "error: $2" >&2
    exit "$1"
}

[ $# -eq 3 ] || [ $# -eq 4 ] || fail 2 "usage: scripts/gpu_bundle.sh KIT TARGET DIR [DATA]"
kit=$1 target=$2 bundle=$3 data=${4:-}
[ -f "$kit/env.sh" ] || fail 1 "$kit/env.sh is missing: first \`make cuda\`"
[ -x "$target/release/runner" ] || fail 1 "$target/release/runner is missing: first \`make cuda\`"
# Only a folder that this script made is replaced.
[ ! -e "$bundle" ] || [ -f "$bundle/gpu-bundle" ] || fail 1 "$bundle is there, and not a bundle: remove it, or name another folder"
# shellcheck disable=SC1091
source "$kit/env.sh"
cargo=${CARGO:-cargo} python=${PYTHON:-python3}

# Prints the path of the executable that `cargo test` or `cargo bench` builds for a target, from cargo's messages.
built() { # test or bench, its name
    local release=--release messages
    [ "$1" = test ] || release="" # the bench profile is that already, and cargo bench has no such flag
    # shellcheck disable=SC2086
    messages=$("$cargo" "$1" $release --features cuda,nccl --target-dir "$target" "--$1" "$2" --no-run --message-format=json-render-diagnostics)
    "$python" -c '
import json, sys
kind, name = sys.argv[1:]
found = [m["executable"] for m in map(json.loads, sys.stdin)
         if m.get("reason") == "compiler-artifact" and m.get("executable") and m["target"]["name"] == name and kind in m["target"]["kind"]]
if len(found) != 1:
    sys.exit(f"cargo names no executable of the {kind} {name}")
print(found[0])' "$1" "$2" <<<"$messages"
}

stripped() { # from, to
    strip -o "$2" "$1" && chmod 755 "$2"
}

fresh=$bundle.new
rm -rf "$fresh"
mkdir -p "$fresh/scripts" "$fresh/experiments" "$fresh/benches/peers"
touch "$fresh/gpu-bundle"
stripped "$target/release/runner" "$fresh/runner"
tests=$(built test gpu) # a statement of its own, so that its failure ends the script
stripped "$tests" "$fresh/gpu-tests"
if [ -f benches/gpu.rs ]; then
    bench=$(built bench gpu)
    stripped "$bench" "$fresh/gpu-bench"
else
    echo "benches/gpu.rs is missing: the bundle has no gpu-bench" >&2
fi
# Each program contains the kernels' images, so they are compressed. gpu_check.sh unpacks them.
for name in runner gpu-tests gpu-bench; do
    [ ! -f "$fresh/$name" ] || xz -6 -T0 "$fresh/$name"
done
cp scripts/gpu_check.sh scripts/gpu_*.py "$fresh/scripts/"
cp benches/peers/gpu_torch.py "$fresh/benches/peers/"
mkdir "$fresh/experiments/gpu"
cp experiments/gpu/*.yaml "$fresh/experiments/gpu/"
cp experiments/gpt2-fineweb-start.yaml "$fresh/experiments/"
cp LICENSE docs/gpu-check.md "$fresh/"
if [ -n "$data" ]; then
    [ -d "$data" ] || fail 2 "$data is not a folder"
    mkdir "$fresh/data"
    for name in input.txt tinyshakespeare.txt logged.json vocab.json merges.txt gpt2-tokenizer/vocab.json gpt2-tokenizer/merges.txt; do
        [ ! -f "$data/$name" ] || cp "$data/$name" "$fresh/data/${name##*/}"
    done
fi
cat >"$fresh/README.md" <<TEXT
# Checking and measuring a GPU

$("$target/release/runner" -V), built $(date -u '+%Y-%m-%d')$(git rev-parse --short HEAD 2>/dev/null | sed 's/^/ from commit /').

    ./scripts/gpu_check.sh              # nine minutes; --help tells the options, --parts takes some of them

needs an NVIDIA driver, CUDA's libraries (a toolkit's, or those that PyTorch's wheels bring) and Python 3; PyTorch to compare with. Log, results and
table are written to the current folder as gpu-check-DATE.log, .jsonl and .md. gpu-check.md lists what is checked, and where limits come from.
\`unxz runner.xz\` gives the program itself.
TEXT

bytes=$(du -sb --apparent-size "$fresh" | cut -f1)
if [ "$bytes" -ge "$LARGEST" ]; then
    du -ab "$fresh" | sort -n | tail -6 >&2
    fail 1 "the folder has $bytes bytes; below $LARGEST is allowed"
fi
rm -rf "$bundle"
mv "$fresh" "$bundle"
tar -C "$(dirname "$bundle")" -czf "$bundle.tar.gz" "$(basename "$bundle")"
echo "$bundle: $bytes bytes; $bundle.tar.gz: $(stat -c %s "$bundle.tar.gz") bytes"
