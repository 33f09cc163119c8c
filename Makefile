# The commands that a contributor needs. `make quickstart` and `make test` work on a fresh machine with Rust and a C compiler.

CARGO ?= cargo
PYTHON ?= python3
CUDA_KIT ?= target/cuda-kit
CUDA_TARGET ?= target/cuda
GPU_BUNDLE ?= target/gpu-bundle

.PHONY: quickstart test torture check check-report cuda check-cuda fmt bench bench-kernels docs clean

quickstart: ## train a small model on the embedded corpus and show what it learned
	$(CARGO) build --release
	$(CARGO) run --release --quiet -- apply experiments/quickstart.yaml

test: ## all tests
	$(CARGO) test --release --workspace

torture: ## a fault at every call that changes a file, and a loss of power after each of them
	RUNNER_TORTURE=all $(CARGO) test --release --workspace --test cli torture -- --nocapture

CARGO_DENY ?= $(firstword $(wildcard target/tools/bin/cargo-deny) $(shell command -v cargo-deny))
CARGO_MACHETE ?= $(firstword $(wildcard target/tools/bin/cargo-machete) $(shell command -v cargo-machete))
check: ## what a commit must pass besides the tests
	$(CARGO) fmt --all --check
	$(CARGO) clippy --release --workspace --all-targets -- -D warnings
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --release --workspace --no-deps --quiet
	@scripts/count_lines.sh
	@if [ -z "$(CARGO_MACHETE)" ]; then \
	    echo "skipped: unused dependencies are not looked for: no cargo-machete (cargo install --locked cargo-machete)"; \
	    else $(CARGO_MACHETE) --skip-target-dir; fi
	@if [ -z "$(CARGO_DENY)" ]; then \
	    echo "skipped: licences, sources and advisories of dependencies are not checked: no cargo-deny (cargo install --locked cargo-deny)"; \
	    elif $(CARGO_DENY) --locked fetch db; then $(CARGO_DENY) --locked check advisories bans licenses sources; \
	    else $(CARGO_DENY) --locked check bans licenses sources && \
	    echo "skipped: advisories of dependencies are not checked: their database cannot be downloaded"; fi

check-report: ## the pages of `runner report` in a headless Chromium (apt-get install chromium)
	$(CARGO) build --release
	$(PYTHON) tests/browser/report.py $${CARGO_TARGET_DIR:-target}/release/runner

cuda: ## build for NVIDIA GPUs, with the toolkit that is installed or one from PyPI, and show what the kernels take
	scripts/cuda_kit.sh $(CUDA_KIT)
	. $(CUDA_KIT)/env.sh && $(CARGO) build --release --features cuda,nccl --target-dir $(CUDA_TARGET)
	scripts/cuda_kernels.sh $(CUDA_TARGET)

check-cuda: ## lints of what only that build has
	scripts/cuda_kit.sh $(CUDA_KIT)
	. $(CUDA_KIT)/env.sh && $(CARGO) clippy --release --workspace --features runner/cuda,runner/nccl --all-targets --target-dir $(CUDA_TARGET) -- -D warnings

.PHONY: wheel test-wheel
WHEELS ?= target/wheels
wheel: ## a Python wheel with the program and the module runner_runs (python/)
	test -x target/wheel-tools/bin/maturin || { $(PYTHON) -m venv target/wheel-tools && target/wheel-tools/bin/pip install --quiet 'maturin>=1.9,<2'; }
	rm -rf $(WHEELS)
	cd python && $(CURDIR)/target/wheel-tools/bin/maturin build --release --out $(abspath $(WHEELS))

test-wheel: wheel ## the wheel in a fresh virtual environment: trains, and reads the run
	$(PYTHON) tests/wheel/test.py $(WHEELS)/*.whl

.PHONY: test-engines
ENGINES ?=
test-engines: ## runs under the launchers of clusters (apt-get install openmpi-bin mpich iproute2 slurm-wlm munge; pip install torch); ENGINES=open_mpi for one of them
	$(CARGO) build --release
	$(PYTHON) tests/engines/test.py $${CARGO_TARGET_DIR:-target}/release/runner $(ENGINES)

.PHONY: fuzz
FUZZ_TARGETS ?= experiment template sweep import documents tokens weights record
FUZZ_SECONDS ?= 60
FUZZ_DIR = $(CURDIR)/target/fuzz
fuzz: ## coverage-guided fuzzing of what reads files (tests/fuzz)
	cp Cargo.lock tests/fuzz/
	cd tests/fuzz && RUSTC_WRAPPER=$(CURDIR)/tests/fuzz/rustc.sh $(CARGO) build --release --target-dir $(FUZZ_DIR)
	printf '%s\n' $(FUZZ_TARGETS) | xargs -P $$(nproc) -I TARGET tests/fuzz/run.sh TARGET $(FUZZ_SECONDS) $(FUZZ_DIR)

.PHONY: dist docker test-dist test-docker
DIST ?= target/dist
DIST_TOOLS ?= target/dist-tools
DIST_TARGET = x86_64-unknown-linux-musl
DIST_ARCHIVE = $(DIST)/runner-$(shell sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml)-$(DIST_TARGET).tar.gz
DOCKER ?= docker
dist: ## one static program for every Linux on x86-64, and a .tar.gz of it with its licence
	test -x $(DIST_TOOLS)/bin/cargo-zigbuild || { $(PYTHON) -m venv $(DIST_TOOLS) && $(DIST_TOOLS)/bin/pip install --quiet cargo-zigbuild ziglang; }
	rustup target add $(DIST_TARGET)
	PATH="$(abspath $(DIST_TOOLS))/bin:$$PATH" CARGO_PROFILE_RELEASE_STRIP=symbols $(CARGO) zigbuild --release --target $(DIST_TARGET)
	mkdir -p $(DIST)
	cp $${CARGO_TARGET_DIR:-target}/$(DIST_TARGET)/release/runner LICENSE README.md $(DIST)/
	tar -C $(DIST) -czf $(DIST_ARCHIVE) runner LICENSE README.md
	ls -l $(DIST)/runner $(DIST_ARCHIVE)

test-dist: dist ## the static program in an empty folder as the root of the file system: trains, and reads the run
	tests/dist/test.sh $(DIST)/runner

docker: dist ## an image that holds the program alone (DOCKER=podman, or DOCKER=buildah where there is no daemon)
	$(DOCKER) build -t runner -f scripts/Dockerfile $(DIST)

test-docker: docker ## trains in a container of the image
	tests/dist/test_image.sh "$(DOCKER)"

fmt:
	$(CARGO) fmt --all

bench: ## training steps beside PyTorch's and their own matrix products, turn by turn (needs Python with torch, and a C++ compiler)
	$(CARGO) build --release
	$(CARGO) build --release --example products
	$(PYTHON) benches/compare.py --model both --modes eager,compile --dtypes fp32,bf16 --products target/release/examples/products

bench-kernels: ## the CPU kernels beside memory bandwidth and the rate of products
	$(CARGO) bench --bench kernels

docs:
	$(CARGO) doc --release --workspace --no-deps --open

.PHONY: site
MDBOOK ?= target/tools/bin/mdbook
site: ## the documentation as a website in target/site, with every link checked
	test -x $(MDBOOK) || $(CARGO) install mdbook@0.5.4 --locked --no-default-features --debug --root target/tools
	$(PYTHON) scripts/docs_site.py $(MDBOOK) target/site

clean:
	$(CARGO) clean

.PHONY: emulated test-emulated test-emulated-layouts
emulated: ## a CUDA driver for machines without a GPU (tests/emulated)
	$(MAKE) -C tests/emulated OUT=$(CURDIR)/target/emulated

# What the tests of a process leave in the memory of an emulated GPU is much: it has 8 GiB.
EMULATED = LD_LIBRARY_PATH=$(CURDIR)/target/emulated RUNNER_GPU_REQUIRED=1 RUNNER_EMULATED_MEMORY=8589934592
test-emulated: emulated ## kernels, steps, layouts and runs on four GPUs of it
	$(MAKE) -C tests/emulated OUT=$(CURDIR)/target/emulated test
	scripts/cuda_kit.sh $(CUDA_KIT)
	. $(CUDA_KIT)/env.sh && $(EMULATED) RUNNER_EMULATED_DEVICES=4 \
	    $(CARGO) test --release --features cuda,nccl --test gpu --target-dir $(CUDA_TARGET) -- --skip sharding::
	# In a process of its own: devices stay open, with their buffers, until the process ends.
	. $(CUDA_KIT)/env.sh && $(EMULATED) RUNNER_EMULATED_DEVICES=4 \
	    $(CARGO) test --release --features cuda,nccl --test gpu --target-dir $(CUDA_TARGET) sharding::

test-emulated-layouts: emulated ## the same with streams that run at once, ranks in processes, and attention before Hopper
	scripts/cuda_kit.sh $(CUDA_KIT)
	# Streams that run at once. The ranks of this test are threads, unlike the program's on GPUs: together they may need more launches than a
	# process has.
	. $(CUDA_KIT)/env.sh && $(EMULATED) RUNNER_EMULATED_DEVICES=4 \
	    RUNNER_EMULATED_STREAMS=1 RUNNER_EMULATED_LAUNCHES=1000000 RUNNER_EMULATED_NCCL_TIMEOUT=240 \
	    $(CARGO) test --release --features cuda,nccl --test gpu --target-dir $(CUDA_TARGET) several_gpus
	. $(CUDA_KIT)/env.sh && $(EMULATED) RUNNER_EMULATED_DEVICES=8 \
	    RUNNER_EMULATED_STREAMS=1 RUNNER_EMULATED_NCCL_TIMEOUT=240 \
	    $(CARGO) test --release --features cuda,nccl --test gpu --target-dir $(CUDA_TARGET) ranks_in_processes
	# The attention of GPUs before Hopper.
	. $(CUDA_KIT)/env.sh && $(EMULATED) RUNNER_EMULATED_CC=8.0 \
	    $(CARGO) test --release --features cuda,nccl --test gpu --target-dir $(CUDA_TARGET) attention

.PHONY: gpu-bundle gpu-check test-gpu-check
gpu-bundle: cuda ## one folder, and a .tar.gz of it, with what checks and measures GPUs on another machine (GPU_DATA=FOLDER: with Tiny Shakespeare)
	scripts/gpu_bundle.sh $(CUDA_KIT) $(CUDA_TARGET) $(GPU_BUNDLE) $(GPU_DATA)

gpu-check: gpu-bundle ## on a machine with a GPU: everything about GPUs, in nine minutes (log, results and table here)
	PYTHON=$(PYTHON) $(GPU_BUNDLE)/scripts/gpu_check.sh --out .

test-gpu-check: ## what gpu-check runs, in small and on the CPU; and that it notices what is wrong
	$(CARGO) build --release
	$(PYTHON) tests/gpu_check/test.py $${CARGO_TARGET_DIR:-target}/release/runner
