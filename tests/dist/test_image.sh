#!/bin/sh
# Usage: test_image.sh docker|podman|buildah. Trains in a container of the image `runner`, and reads the run outside of it. Docker and
# podman do it as the user who calls; buildah does it where neither a daemon nor control groups can be had.
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
# The tool may have flags of its own, so it is not quoted.
case $tool in
buildah*)
    container=$($tool from runner)
    $tool run --isolation chroot -v "$folder:/experiments" "$container" -- /usr/local/bin/runner apply micro.yaml
    $tool rm "$container" >/dev/null
    ;;
*) $tool run --rm --user "$(id -u):$(id -g)" -v "$folder:/experiments" runner apply micro.yaml ;;
esac
grep -q '"status": *"done"' "$folder"/runs/micro-*/manifest.json
