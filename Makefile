# The words people type. All of them are one or two CMake commands or a script in tools/; see CONTRIBUTING.md.
JOBS ?= $(shell nproc)
BUILD := build
TYPE ?= Release
# Ninja where it is installed, make otherwise; a folder that is configured keeps what it has.
ifneq ($(shell command -v ninja 2>/dev/null),)
export CMAKE_GENERATOR ?= Ninja
endif
export JOBS

.PHONY: all deps demo check bench bench-ranks bench-papers bench-planner-scale bench-search bench-large-batch install format clean help

all: $(BUILD)/CMakeCache.txt
	cmake --build $(BUILD) -j $(JOBS) --target $(if $(wildcard src/cli/*.c),leapgrad-cli,leapgrad)

# The tests need cmocka, the program does not: a build without it is made without tests.
$(BUILD)/CMakeCache.txt:
	cmake -S . -B $(BUILD) -DCMAKE_BUILD_TYPE=$(TYPE) -DLG_TESTS=$$(pkg-config --exists cmocka && echo ON || echo OFF)

deps:
	@tools/install_packages.sh build test demo bench

demo:
	@tools/install_packages.sh build demo
	@$(MAKE) --no-print-directory all
	@tools/demo.sh

check:
	@tools/install_packages.sh build test
	@tools/check.sh

bench:
	@tools/install_packages.sh build bench
	@bench/run.sh

bench-ranks:
	@tools/install_packages.sh build bench bench-ranks
	@bench/ranks.sh $(ARGS)

bench-planner-scale:
	@tools/install_packages.sh build
	@cmake --preset release -DLG_BENCH=ON >/dev/null
	@cmake --build --preset release -j $(JOBS) --target bench_planner_scale >/dev/null
	@$(BUILD)/bench/bench_planner_scale $(ARGS)

bench-papers:
	@tools/install_packages.sh build
	@bench/papers.sh

bench-search:
	@tools/install_packages.sh build
	@cmake --preset release -DLG_BENCH=ON >/dev/null
	@cmake --build --preset release -j $(JOBS) --target bench_search_exact >/dev/null
	@$(BUILD)/bench/bench_search_exact $(ARGS)

bench-large-batch:
	@tools/install_packages.sh build bench demo
	@cmake --preset release >/dev/null
	@cmake --build --preset release -j $(JOBS) --target leapgrad-cli >/dev/null
	@python3 bench/large_batch.py $(ARGS)

install: all
	cmake --install $(BUILD)

format:
	@tools/check_format.sh --fix

clean:
	rm -rf $(BUILD)

help:
	@echo 'make          build build/leapgrad (Release)'
	@echo 'make demo     install what is missing, build, train on real data (about 5 minutes)'
	@echo 'make check    install what is missing, build, run all checks and tests'
	@echo 'make bench    measure training steps against PyTorch'
	@echo 'make bench-ranks   steps over two ranks and shaped links, beside PyTorch (four hours; ARGS=--quick: minutes)'
	@echo 'make bench-planner-scale  plan, prove and simulate a step on 64 ranks (seconds)'
	@echo 'make bench-search   how near auto comes to the exact optimum of small cases (seconds)'
	@echo 'make bench-papers         simulate the settings of papers, our speed-up beside theirs'
	@echo 'make bench-large-batch    train with batches of up to 256 times the base, every rule for the rate (an hour; resumes)'
	@echo 'make install  install program, library and headers (cmake --install build)'
	@echo 'make deps     install all Debian packages of tools/packages.txt'
	@echo 'make format   clang-format all sources'
	@echo 'make clean    remove build/'
