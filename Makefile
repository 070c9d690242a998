# The commands that people and CI use. Everything else is in CMakePresets.json and scripts/.
# make test PRESET=ci: another preset than the release one.
PRESET ?= release
# make fuzz FUZZ_SECONDS=60: how long each fuzzer runs.
FUZZ_SECONDS ?= 600

.PHONY: build demo multi-gpu test test-scale test-rdma asan tsan fuzz format check clean deps tools configure everything
.DEFAULT_GOAL := build

deps:
	@scripts/install_deps.sh
	@scripts/install_ucx.sh

tools: deps
	@scripts/install_deps.sh --tools

configure: deps
	@cmake --preset $(PRESET) --log-level=WARNING

# Libraries and programs, without tests.
build: configure
	cmake --build --preset $(PRESET) --target products

everything: configure
	cmake --build --preset $(PRESET)

demo: build
	scripts/demo.sh build/$(PRESET)/cli/sluice

# On the GPUs of this host, as many as there are; ends with an error where a wanted figure is missed (docs/gpu.md).
multi-gpu: configure
	cmake --build --preset $(PRESET) --target sluice bench_gpu
	bench/multi_gpu.py build/$(PRESET) --check --json build/multi_gpu.json

test: everything
	ctest --preset $(PRESET)

test-scale: everything
	ctest --preset scale

# Over verbs lanes, in an emulated guest; as root, with SLUICE_RDMA_UCX=/path/to/ucx (docs/rdma.md).
test-rdma:
	@tests/rdma/run.sh

asan:
	@$(MAKE) --no-print-directory test PRESET=asan-ubsan

tsan:
	@$(MAKE) --no-print-directory test PRESET=tsan

fuzz: tools
	@$(MAKE) --no-print-directory configure PRESET=fuzz
	cmake --build --preset fuzz
	scripts/fuzz.sh build/fuzz $(FUZZ_SECONDS)

format: tools
	scripts/format.sh

# What a reviewer need not look for.
check: tools build
	scripts/format.sh --check
	scripts/check_includes.py
	scripts/tidy.sh build/$(PRESET)

clean:
	rm -rf build
