# The commands that people and CI use. Everything else is in CMakePresets.json and scripts/.
# make test PRESET=ci: another preset than the release one.
PRESET ?= release

.PHONY: build demo test test-scale asan tsan format check clean deps tools configure everything
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

test: everything
	ctest --preset $(PRESET)

test-scale: everything
	ctest --preset scale

asan:
	@$(MAKE) --no-print-directory test PRESET=asan-ubsan

tsan:
	@$(MAKE) --no-print-directory test PRESET=tsan

format: tools
	scripts/format.sh

# What a reviewer need not look for.
check: tools build
	scripts/format.sh --check
	scripts/check_includes.py
	scripts/tidy.sh build/$(PRESET)

clean:
	rm -rf build
