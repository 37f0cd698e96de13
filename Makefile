.DEFAULT_GOAL := help
.PHONY: help setup build bundle test test-full test-unit test-asan test-tsan test-deb test-clients fuzz demo demo-rl bench check format clean

help:  ## list these targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup:  ## install missing Debian packages
	@tools/setup.sh

# ARCHS="80 90a": the GPU architectures of the build; by default that of the GPU here.
archs := $(if $(ARCHS),-DBEV_CUDA_ARCHS="$(ARCHS)")

build/build.ninja: | setup
	@cmake --preset release

build: setup build/build.ninja  ## build the program: build/bevatron; ARCHS="80 90a" for those GPUs
	$(if $(archs),@cmake build $(archs) >/dev/null)
	@cmake --build build

bundle: build  ## what runs on other machines (ARCHS="80 86 89 90a 100 120"): build/bundle, packed as .tar.xz
	@tools/bundle.sh

test: setup  ## checks and unit tests, then the sanitizer builds
	@tools/run_tests.sh release asan tsan

test-full: setup  ## the same with the long tests too
	@tools/run_tests.sh --full release asan tsan

test-unit: setup  ## checks and unit tests only
	@tools/run_tests.sh release

test-asan: setup  ## address and undefined-behaviour sanitizers
	@tools/run_tests.sh asan

test-tsan: setup  ## thread sanitizer
	@tools/run_tests.sh tsan

test-deb: build  ## install the Debian package into a root of its own and train there (as root)
	@tools/test_deb.sh build

test-clients: build  ## run the official client, curl, lm-eval's requests and a browser against the server
	@tools/test_clients.sh

fuzz:  ## search for files that readers do not stand; SECONDS=60 for each reader
	@tools/setup.sh clang-16 libclang-rt-16-dev
	@tools/fuzz.sh $(or $(SECONDS),60)

demo:  ## a first training run: builds the program for this machine, trains for 90 seconds, samples
	@tools/setup.sh --program
	@tools/demo.sh

demo-rl:  ## reinforcement learning in minutes: a model that writes wrong sums is rewarded for right ones
	@tools/setup.sh --program
	@tools/demo_rl.sh

bench: setup  ## build and run the benchmarks
	@cmake --preset release -DBEV_BENCH=ON >/dev/null
	@cmake --build build --target benchmarks
	@bench/cpu.sh

check: setup  ## formatting, layers, headers, their fan-out, kernel calls, source rules, terms, names in docs and size
	@for check in format layers fanout headers kernel_calls rules terms docs size; do tools/check_$$check.sh || failed=1; done; test -z "$$failed"

format: setup  ## apply clang-format to all sources
	@tools/check_format.sh --fix

clean:  ## remove the build folder
	@rm -rf build
