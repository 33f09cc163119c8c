#!/bin/sh
# Usage: test.sh PROGRAM. Runs PROGRAM where there is no library and no file but its own: in an empty root folder, for which chroot needs
# a user namespace or the superuser.
set -eu
program=$1
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
mkdir -p "$root/experiments" "$root/tmp"
cp "$program" "$root/runner"
cat > "$root/experiments/micro.yaml" <<'YAML'
version: 1
name: micro
model: {family: gpt2, layers: 1, heads: 2, d_model: 32, context_length: 32}
data: {train: {builtin: {corpus: stories}}, validation: {fraction: 0.1}, tokenizer: {bytes: {}}}
batch: {sequences: 4}
train: {steps: 6}
eval: {every: 3}
checkpoint: {every: 3}
YAML
inside() {
    namespace=unshare\ -r
    [ "$(id -u)" = 0 ] && namespace=
    $namespace env -i PATH=/usr/sbin:/usr/bin RUNNER_CACHE=/tmp/cache RUNNER_RUNS=/experiments/runs chroot "$root" /runner "$@"
}
inside apply /experiments/micro.yaml
inside runs
inside runs | grep -q 'micro-.*done'
