#!/usr/bin/env bash
# Checks and measures this program on a machine with an NVIDIA GPU, in under nine minutes: what it finds, its kernels, training beside the
# CPU's, speed and memory beside PyTorch's, several ranks, the sanitizer. Runs in the folder that `make gpu-bundle` makes, on a machine that has
# a driver, CUDA's libraries (of a toolkit, or of PyTorch's wheels) and Python 3; without PyTorch the comparisons with it are left out.
#
# usage: scripts/gpu_check.sh [--data FOLDER] [--out FOLDER] [--seconds N] [--parts LIST] [--session] [--python PYTHON] [--scratch FOLDER]
#                             [--tiny] [--cpu]
#
#   --data     a folder with Tiny Shakespeare (input.txt) and GPT-2's vocab.json and merges.txt [default: data/, if it is there]
#   --out      where log, results and table go: gpu-check-DATE.log, .jsonl, .md [default: the current folder]
#   --seconds  for all parts together [default: 520; with small sizes 1800]
#   --parts    some of doctor,tests,parity,bench,kernels,start,ranks,sanitize, and of what only --session does:
#              clocks,gaps,calls,algorithms,occupied,killed,loading
#   --session  a card's quarter of an hour, what decides most first, in 780 s. Its files have no date: called again with the same --out, it
#              continues with the parts that are missing
#   --python   the interpreter, with PyTorch if there is one [default: $PYTHON, or python3]
#   --scratch  where a folder for runs is made, and removed: 8 GB [default: /dev/shm if it has the room, else the temporary folder]
#   --tiny     small sizes, to try the script on an emulated driver
#   --cpu      the same on the CPU, with small sizes, to try the script without a GPU (or RUNNER_GPU_CHECK_DEVICE=cpu)
#
# COMPUTE_SANITIZER names the tool of the part sanitize where it is not found by itself.
#
# Each part has a time limit, and is done whether or not another failed. Exit codes: 0 all checks passed, 1 one failed, 2 the request was wrong.
# shellcheck disable=SC2086,SC2329  # $tiny is one flag or nothing; parts are called by name
set -uo pipefail


root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
ALL=doctor,tests,parity,bench,kernels,start,ranks,sanitize
# The time of bench comes last: it takes what is left.
SESSION=doctor,tests,clocks,gaps,calls,algorithms,occupied,kernels,sanitize,ranks,killed,loading,bench
# Seconds a part may take; what the parts before leave is bench's.
declare -A LIMITS=([doctor]=15 [tests]=50 [parity]=70 [bench]=200 [kernels]=30 [start]=90 [ranks]=35 [sanitize]=60
    [clocks]=45 [gaps]=45 [calls]=40 [algorithms]=60 [occupied]=40 [killed]=40 [loading]=30)

fail() {
    echo "error: $1" >&2
    exit 2
}

data="" out=$PWD seconds="" parts=$ALL session="" python=${PYTHON:-python3} scratch="" tiny="" device=${RUNNER_GPU_CHECK_DEVICE:-cuda}
unset RUNNER_GPU_CHECK_DEVICE
while [ $# -gt 0 ]; do
    case $1 in
        --data | --out | --seconds | --parts | --python | --scratch)
            [ $# -ge 2 ] || fail "$1 needs a value"
            case $1 in
                --data) data=$2 ;;
                --out) out=$2 ;;
                --seconds) seconds=$2 ;;
                --parts) parts=$2 ;;
                --python) python=$2 ;;
                --scratch) scratch=$2 ;;
            esac
            shift 2
            ;;
        --session) session=yes parts=$SESSION && shift ;;
        --tiny) tiny=--tiny && shift ;;
        --cpu) device=cpu && shift ;;
        -h | --help) sed -n '2,/^# shellcheck /{/^# shellcheck /d;s/^# \{0,1\}//;p}' "${BASH_SOURCE[0]}" && exit 0 ;;
        *) fail "unknown option $1 (--help tells those there are)" ;;
    esac
done
[ "$device" = cpu ] && tiny=--tiny
[ -n "$tiny" ] && for name in "${!LIMITS[@]}"; do LIMITS[$name]=240; done
[ -z "$session" ] || LIMITS[ranks]=100
seconds=${seconds:-$(if [ -n "$tiny" ]; then echo 1800; elif [ -n "$session" ]; then echo 780; else echo 520; fi)}
[ "$device" = cpu ] || [ "$device" = cuda ] || fail "the device is cuda or cpu, not $device"
[[ $seconds =~ ^[1-9][0-9]*$ ]] || fail "--seconds is a whole number above 0, not $seconds"
for name in ${parts//,/ }; do
    [ -n "${LIMITS[$name]:-}" ] || fail "--parts: there is no $name among $ALL,$SESSION"
done
[ -z "$data" ] || [ -d "$data" ] || fail "--data: $data is not a folder"
[ -n "$data" ] || { [ -d "$root/data" ] && data=$root/data; }
[ -z "$data" ] || data=$(cd "$data" && pwd)
{ mkdir -p "$out" && out=$(cd "$out" && pwd); } || fail "--out: $out cannot be made"

# Of the bundle, or of a checkout.
runner=${RUNNER:-}
for candidate in "$root/runner" "$root/target/cuda/release/runner"; do
    [ -n "$runner" ] || { [ -x "$candidate" ] && runner=$candidate; }
done
[ -x "$runner" ] || { [ -z "$runner" ] && [ -f "$root/runner.xz" ]; } || fail "there is no program: neither $root/runner nor \$RUNNER"
have_python=""
command -v "$python" >/dev/null && "$python" -c 'import sys; sys.exit(sys.version_info < (3, 8))' 2>/dev/null && have_python=yes

if [ -z "$scratch" ]; then
    scratch=${TMPDIR:-/tmp}
    free=$(df -Pk /dev/shm 2>/dev/null | awk 'NR == 2 {print $4}')
    [ "${free:-0}" -gt 8000000 ] && [ -w /dev/shm ] && scratch=/dev/shm
fi
work=$(mktemp -d "$scratch/gpu-check-XXXXXX") || fail "--scratch: no folder can be made in $scratch"
# What is executed lies elsewhere: /dev/shm is often mounted noexec.
code_folder=$work
[ "$scratch" != /dev/shm ] || code_folder=$(mktemp -d "${TMPDIR:-/tmp}/gpu-check-XXXXXX") || fail "no folder can be made in ${TMPDIR:-/tmp}"
export GPU_CHECK_CODE=$code_folder
background=()
# shellcheck disable=SC2317,SC2329  # called by trap
clean() {
    for pid in "${background[@]}"; do kill "$pid" 2>/dev/null; done
    for pid in "${background[@]}"; do wait "$pid" 2>/dev/null; done
    rm -rf "$work" "$code_folder"
}
trap clean EXIT
trap 'exit 130' INT TERM HUP

unpack() {
    if command -v xz >/dev/null; then
        xz -dc "$1"
    else
        "$python" -c 'import lzma, shutil, sys; shutil.copyfileobj(lzma.open(sys.argv[1]), sys.stdout.buffer)' "$1"
    fi
}

# The path of a program of the bundle, unpacked if it is packed; nothing if it is not there.
program() {
    if [ -x "$root/$1" ]; then
        echo "$root/$1"
    elif [ -f "$root/$1.xz" ]; then
        [ -x "$code_folder/$1" ] || { unpack "$root/$1.xz" >"$code_folder/$1" && chmod +x "$code_folder/$1"; }
        echo "$code_folder/$1"
    fi
}
runner=${runner:-$(program runner)}
runner=$(cd "$(dirname "$runner")" && pwd)/$(basename "$runner")

stamp=$([ -n "$session" ] && echo session || date -u +%Y%m%d-%H%M%S)
log=$out/gpu-check-$stamp.log results=$out/gpu-check-$stamp.jsonl markdown=$out/gpu-check-$stamp.md
# Of each part that is done: its name, result and seconds.
done_parts=$work/parts
[ -z "$session" ] || done_parts=$out/gpu-check-$stamp.parts
touch "$results" "$done_parts"
exec > >(tee -a "$log") 2>&1
started=$SECONDS
left() { echo $((seconds - (SECONDS - started))); }

# CUDA's libraries that PyTorch's wheels or a toolkit brought. For our program alone: PyTorch finds its own.
wheels=""
if [ -n "$have_python" ]; then
    wheels=$("$python" - <<'PY'
import glob, importlib.util, os, site, sys
roots = list(sys.path) + [site.getusersitepackages()]
spec = importlib.util.find_spec("nvidia")
folders = list(spec.submodule_search_locations or []) if spec else []
folders += [os.path.join(root, "nvidia") for root in roots]
found = []
for folder in folders:
    for library in sorted(glob.glob(os.path.join(folder, "*", "lib"))):
        if library not in found and glob.glob(os.path.join(library, "lib*.so*")):
            found.append(library)
print(":".join(found))
PY
    ) || wheels=""
fi
toolkit=""
for folder in ${CUDA_HOME:+"$CUDA_HOME/lib64"} ${CUDA_HOME:+"$CUDA_HOME/targets/x86_64-linux/lib"} /usr/local/cuda/lib64 /usr/local/cuda/targets/x86_64-linux/lib; do
    [ -d "$folder" ] && toolkit=$toolkit${toolkit:+:}$folder
done
# What the caller lists comes first, so that an emulated driver's libraries are not passed over.
libraries=${RUNNER_CUDA_LIBS:-}
for more in "$wheels" "$toolkit"; do
    [ -n "$more" ] && libraries=$libraries${libraries:+:}$more
done
export RUNNER_CUDA_LIBS=$libraries GPU_CHECK_LIBS=$libraries GPU_CHECK_CACHE=$work/cache
export PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
library_path=${LD_LIBRARY_PATH:-}${LD_LIBRARY_PATH:+${libraries:+:}}$libraries

torch=""
[ -n "$have_python" ] && "$python" -c 'import importlib.util, sys; sys.exit(importlib.util.find_spec("torch") is None)' && torch=$python
cores=$(nproc 2>/dev/null || echo 4)

echo "# GPU check, $(date -u '+%Y-%m-%d %H:%M UTC'), device: $device"
echo
echo "program    $("$runner" --version 2>&1 | head -1): $runner"
echo "machine    $(uname -sr), $cores cores, $(awk '/MemTotal/ {printf "%.0f GiB", $2 / 1048576}' /proc/meminfo 2>/dev/null)"
if command -v nvidia-smi >/dev/null; then
    nvidia-smi --query-gpu=name,memory.total,driver_version,clocks.max.sm,power.limit --format=csv,noheader 2>&1 | sed 's/^/GPU        /'
fi
if [ -n "$have_python" ]; then echo "Python     $("$python" --version 2>&1)"; else echo "Python     none: only doctor, tests, kernels and sanitize"; fi
echo "PyTorch    $([ -n "$torch" ] && echo "there" || echo "none: nothing is compared with it")"
echo "libraries  ${libraries:-those of the loader}"
echo "data       ${data:-none: the start on Tiny Shakespeare is left out}"
echo "scratch    $work"
echo

# A result as gpu_common.Notes writes them. ok: true, false or null.
note() { # part, name, ok, value, note
    printf '{"part": "%s", "name": "%s", "ok": %s, "value": "%s", "limit": "", "note": "%s"}\n' "$1" "$2" "$3" "${4//[\"\\]/}" "${5//[\"\\]/}" >>"$results"
    echo "$2: $3 $4 $5"
}

with_libraries() { LD_LIBRARY_PATH=$library_path "$@"; }

script() { # name, seconds, arguments…; it ends by itself, and with all that it started if it does not
    local name=$1 limit=$2
    shift 2
    timeout -k 10 $((limit + 4)) "$python" "$root/scripts/$name.py" --runner "$runner" --scratch "$work/run" --device "$device" --results "$results" --seconds "$limit" $tiny "$@"
}

run_doctor() {
    local code=0 ok=true
    with_libraries timeout -k 5 "$1" "$runner" doctor | tee "$work/doctor.out"
    code=${PIPESTATUS[0]}
    [ "$device" = cpu ] || [ "$code" -ne 0 ] || grep -q '^training on one GPU  *ready$' "$work/doctor.out" || code=1
    [ "$code" -eq 0 ] || ok=false
    note doctor "the machine is ready" $ok "" "$([ $ok = true ] || echo "exit code $code, or training on one GPU is not ready")"
    return "$code"
}

run_tests() {
    local tests
    tests=$(program gpu-tests)
    [ -n "$tests" ] || { note tests "kernel tests" null "" "there is no gpu-tests beside the program" && return 0; }
    [ "$device" = cuda ] || { note tests "kernel tests" null "" "they need a GPU" && return 0; }
    local ok=true code=0
    # Ranks of these tests are threads, whose GPUs do not read each other's memory.
    with_libraries env NCCL_P2P_DIRECT_DISABLE=1 RUNNER_GPU_REQUIRED=1 RUNNER_GPU_BINARY="$runner" timeout -k 5 "$1" "$tests" --test-threads=4 2>&1 | tee "$work/tests.out"
    code=${PIPESTATUS[0]}
    [ "$code" -eq 0 ] || ok=false
    note tests "kernel tests" $ok "$(grep '^test result' "$work/tests.out" | tail -1)" "exit code $code$([ "$code" -eq 124 ] && echo ': no time was left')"
    return "$code"
}

# Ends a process and all that it started, and waits, for ten seconds at most: what goes on would keep the locks of its runs.
end_all() {
    local child look
    for child in $(ps -o pid= --ppid "$1" 2>/dev/null); do end_all "$child"; done
    kill "$1" 2>/dev/null
    for look in $(seq 100); do
        kill -0 "$1" 2>/dev/null && [ "$(ps -o stat= -p "$1" 2>/dev/null | cut -c1)" != Z ] || return 0
        [ "$look" != 50 ] || kill -9 "$1" 2>/dev/null
        sleep 0.1
    done
}

run_parity() {
    # The CPU's runs began when the script did.
    local began=$SECONDS
    while [ -n "${references:-}" ] && kill -0 "$references" 2>/dev/null && [ $((SECONDS - began)) -lt $(($1 / 2)) ]; do sleep 0.2; done
    [ -z "${references:-}" ] || { end_all "$references"; wait "$references" 2>/dev/null; }
    [ ! -s "$work/references.out" ] || cat "$work/references.out"
    set -- $(($1 - (SECONDS - began)))
    script gpu_parity $(($1 - 6)) --threads "$cores"
}

run_bench() {
    [ -z "${warming:-}" ] || { kill "$warming" 2>/dev/null && wait "$warming"; echo "compiled beforehand by PyTorch:"; cat "$work/warm.out"; }
    script gpu_bench $(($1 - 6)) --python "$torch" --threads "$cores"
}

run_gpu_bench() { # seconds, part, what it measures, arguments…
    local limit=$1 part=$2 what=$3 bench code=0 ok=true
    shift 3
    bench=$(program gpu-bench)
    [ -n "$bench" ] || { note "$part" "$what" null "" "there is no gpu-bench beside the program" && return 0; }
    [ "$device" = cuda ] || { note "$part" "$what" null "" "they need a GPU" && return 0; }
    with_libraries timeout -k 5 "$limit" "$bench" $tiny "$@" || { code=$? && ok=false; }
    note "$part" "$what" $ok "" "exit code $code; the table is in the log"
    return $code
}

run_start() {
    [ -n "$data" ] || { note start "GPT-2's start on Tiny Shakespeare" null "" "no data: --data FOLDER" && return 0; }
    script gpu_start $(($1 - 6)) --data "$data" --python "$torch" --threads "$cores"
}

run_ranks() {
    script gpu_ranks $(($1 - 6))
}

run_clocks() { script gpu_session $(($1 - 6)) clocks; }
run_gaps() { script gpu_session $(($1 - 6)) gaps; }
run_loading() { script gpu_session $(($1 - 6)) loading; }
run_killed() { script gpu_session $(($1 - 6)) killed; }
run_calls() { script gpu_calls $(($1 - 6)); }
run_algorithms() { run_gpu_bench "$1" algorithms "algorithms of cuBLASLt" --algorithms 16; }
run_occupied() { run_gpu_bench "$1" occupied "products beside kernels that wait" --occupy 16; }
run_kernels() { run_gpu_bench "$1" kernels "kernels beside their floors"; }

run_sanitize() {
    local sanitizer=${COMPUTE_SANITIZER:-} candidate until=$((SECONDS + $1)) failed=0 tool model precision code
    [ "$device" = cuda ] || [ -n "$sanitizer" ] || { note sanitize "compute-sanitizer" null "" "it needs a GPU" && return 0; }
    for candidate in "$(command -v compute-sanitizer)" ${CUDA_HOME:+"$CUDA_HOME/bin/compute-sanitizer"} /usr/local/cuda/bin/compute-sanitizer \
        ${wheels:+$(for folder in ${wheels//:/ }; do echo "$folder/../bin/compute-sanitizer"; done)}; do
        [ -n "$sanitizer" ] || { [ -x "$candidate" ] && sanitizer=$candidate; }
    done
    [ -n "$sanitizer" ] || { note sanitize "compute-sanitizer" null "" "the tool is not on this machine" && return 0; }
    # Without initcheck, which does not see what cuBLASLt stores with Hopper's copy engine. API errors are not
    # reported: the program ends at those that it does not expect.
    for tool in "memcheck gpt2 bf16" "memcheck llama fp32" "synccheck gpt2 bf16" "racecheck gpt2 bf16" "racecheck llama tf32"; do
        read -r tool model precision <<<"$tool"
        if [ $((until - SECONDS)) -lt 5 ]; then
            note sanitize "$tool, $model $precision" null "" "not reached: no time was left"
            continue
        fi
        code=0
        with_libraries env RUNNER_RUNS="$work/sanitize-$tool-$model" RUNNER_CACHE="$work/cache" timeout -k 5 $((until - SECONDS)) \
            "$sanitizer" --tool "$tool" --report-api-errors no --error-exitcode 99 --target-processes all "$runner" apply "$root/experiments/gpu/parity-$model.yaml" --quiet \
            --set device="$device" --set precision="$precision" --set train.steps=2 --set schedule.warmup.steps=1 --set model.layers=2 \
            --set batch.sequences=4 --set batch.micro_batch=2 --set eval.loss.rows=2 2>&1 | tail -40
        code=${PIPESTATUS[0]}
        case $code in
            0) note sanitize "$tool, $model $precision" true "" "" ;;
            124 | 137) note sanitize "$tool, $model $precision" null "" "no time was left" ;;
            *) note sanitize "$tool, $model $precision" false "" "exit code $code" && failed=1 ;;
        esac
    done
    return $failed
}

# A part in a time limit of its own; `after` is what the parts behind it shall still have.
part() { # name, after
    local name=$1 limit=${LIMITS[$1]} room began=$SECONDS code=0 result
    room=$(($(left) - $2))
    [ "$name" = bench ] && limit=$room
    [ "$limit" -le "$room" ] || limit=$room
    echo "== $name (at most $limit s)"
    if [ "$limit" -lt 8 ]; then
        result="not reached: no time was left"
    else
        case $name in
            parity | bench | start | ranks | clocks | gaps | calls | killed | loading)
                if [ -z "$have_python" ]; then
                    note "$name" "$name" null "" "there is no Python 3.8 or newer"
                else
                    "run_$name" "$limit" || code=$?
                fi
                ;;
            *) "run_$name" "$limit" || code=$? ;;
        esac
        case $code in
            0) result=ok ;;
            124) result="FAILED: not done in time" ;;
            *) result="FAILED: exit code $code" ;;
        esac
    fi
    [ "$result" = "not reached: no time was left" ] && [ -n "$session" ] ||
        printf '%s\t%s\t%s\n' "$name" "$result" $((SECONDS - began)) >>"$done_parts"
    echo "== $name: $result, $((SECONDS - began)) s"
    echo
}

# What can be done beside the first parts: the CPU's runs, and PyTorch's compiling.
if [ -n "$have_python" ] && [[ ,$parts, == *,parity,* ]]; then
    script gpu_parity 150 --references-only --threads "$cores" >"$work/references.out" 2>&1 &
    references=$!
    background+=("$references")
fi
# A session measures from its first parts on, which this would disturb.
if [ -n "$torch" ] && [ "$device" = cuda ] && [ -z "$tiny$session" ] && [[ ,$parts, == *,bench,* ]]; then
    timeout -k 10 200 "$python" "$root/scripts/gpu_bench.py" --warm --runner "$runner" --scratch "$work/run" --python "$torch" --seconds 200 >"$work/warm.out" 2>&1 &
    warming=$!
    background+=("$warming")
fi

if [ "$device" = cuda ] && ! "$runner" doctor --json 2>/dev/null | tr -d ' \n' | grep -q '"gpus":\[{'; then
    "$runner" doctor >&2 || true
    fail "there is no GPU here: --cpu tries the script without one"
fi

ordered=()
order=$ALL,${SESSION#doctor,}
[ -z "$session" ] || order=$SESSION
for name in ${order//,/ }; do
    [[ ,$parts, != *,$name,* || " ${ordered[*]} " == *" $name "* ]] && continue
    if [ -n "$session" ] && grep -q "^$name	" "$done_parts"; then echo "== $name: done before" && continue; fi
    ordered+=("$name")
done
for index in "${!ordered[@]}"; do
    after=0
    for name in "${ordered[@]:index+1}"; do after=$((after + LIMITS[$name])); done
    # Without the time for all, the parts behind get what is left.
    [ "$after" -lt $(($(left) - 8)) ] || after=0
    part "${ordered[$index]}" "$after"
done

{
    echo "# GPU check of $(date -u '+%Y-%m-%d')"
    echo
    sed -n '/^program /,/^scratch /p' "$log" | grep -v '^scratch' | sed 's/^/    /'
    echo
} >"$markdown"
code=0
if [ -n "$have_python" ]; then
    "$python" "$root/scripts/gpu_table.py" "$results" "$done_parts" >>"$markdown" || code=1
else
    { echo "| part | result | seconds |" && echo "|---|---|---|" && sed 's/\t/ | /g; s/^/| /; s/$/ |/' "$done_parts"; } >>"$markdown"
    ! grep -q FAILED "$done_parts" && ! grep -q '"ok": false' "$results" || code=1
fi
cat "$markdown"
echo
echo "all: $((SECONDS - started)) s; $log, $results, $markdown"
exit $code
