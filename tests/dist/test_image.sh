#!/bin/sh
# Usage: test_image.sh docker|podman. Trains in a container of the image `runner`, as the user who calls, and reads the run outside of it.
set -eu
tool=$1
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cat > "$folder/micro.yaml" <<'YAML'
version: 1
name: micro
model: {family: gpt2, layers: 1, heads: 2, d_model: 32, context_length: 32}
data: {train: {builtin: {corpus: stories}}, tokenizer: {bytes: {}}}
batch: {sequences: 4}
train: {steps: 6}
parallel: {mode: ddp, replicas: 2}
YAML
"$tool" run --rm --user "$(id -u):$(id -g)" -v "$folder:/experiments" runner apply micro.yaml
grep -q '"status": *"done"' "$folder"/runs/micro-*/manifest.json
