#!/bin/sh
# Usage: run.sh TARGET SECONDS FOLDER. Fuzzes one target with the program in FOLDER/release, where corpus, log and defects are left.
set -eu
target=$1 seconds=$2 folder=$3
seeds=$(dirname "$0")/seeds/$target
log=$folder/$target.log
mkdir -p "$folder/corpus/$target" "$folder/found"
if RUNNER_FUZZ_TARGET=$target "$folder/release/runner-fuzz" -seed=1 -max_total_time="$seconds" -timeout=25 -rss_limit_mb=2048 \
    -max_len=32768 -verbosity=0 -print_funcs=0 -print_final_stats=1 -artifact_prefix="$folder/found/$target-" \
    "$folder/corpus/$target" "$seeds" >"$log" 2>&1; then
    stat() { sed -n "s/^stat::$1: *//p" "$log"; }
    echo "fuzz $target: $(stat number_of_executed_units) inputs, $(stat new_units_added) of them reached new code," \
        "$(stat peak_rss_mb) MB at most"
else
    tail -n 60 "$log"
    echo "fuzz $target: a defect; the input is in $folder/found, the log in $log" >&2
    exit 1
fi
