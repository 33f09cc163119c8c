#!/bin/sh
# Calls the compiler (RUSTC_WRAPPER), and adds libFuzzer's instrumentation for the crates that read files.
compiler=$1
shift
case " $* " in
*" --crate-name runner_"* | *" --crate-name saphyr"* | *" --crate-name minijinja "* | *" --crate-name safetensors "* | *" --crate-name serde_json "*)
    exec "$compiler" "$@" -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=3 \
        -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
        -Cllvm-args=-sanitizer-coverage-trace-compares
    ;;
*) exec "$compiler" "$@" ;;
esac
