# Every target installs what it needs, can be run again at any time, and says what to do when it
# cannot continue. `build` needs a compiler, make and Rust, and nothing else. What takes more than a few lines is a script under tools/.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
MAKEFLAGS += --no-print-directory

# Where `make build` stages the programs, libraries, headers and manual pages.
PREFIX ?= $(CURDIR)/build/prefix
CARGO ?= cargo
export PREFIX CARGO

# The list in bench/orcbench/__main__.py: a module each.
BENCHES := $(shell sed -n '/^BENCHMARKS = (/,/^)/s/^    "\(.*\)",$$/\1/p' bench/orcbench/__main__.py)

.PHONY: help build install-deps demo check check-fast check-arm sabotage bench torture soak fmt clean

help: ## show this list
	@echo 'Orcheck: orchestrated checkpoints for parallel programs'
	@echo
	@awk -F':.*## ' '/^[a-z%<>-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo
	@echo '  benchmarks here: $(if $(BENCHES),$(addprefix bench-,$(BENCHES)),none)'
	@echo '  PREFIX=DIR      where build stages the programs (now $(PREFIX))'

install-deps: ## install the packages that `check` can use and that are missing (apt)
	@tools/install-deps.sh check

build: ## build everything for production and stage it under PREFIX
	@tools/install-deps.sh build
	@tools/install-prefix.sh "$(PREFIX)"

demo: build ## kill a solver in the middle of a flush, resume it, compare the states; one screen
	@tools/install-deps.sh demo
	@tools/demo.sh

check: ## every check there is; ends with 'N passed, 0 failed'
	@tools/install-deps.sh check
	@tools/check.sh

check-fast: ## formatting, lints, unit tests and the rules of the tree; a few minutes
	@tools/install-deps.sh check
	@tools/check.sh fast

check-arm: ## the tests of the copy kernels for Arm, in an emulator where needed
	@tools/check-arm.sh

sabotage: ## take every protection away, one at a time; a test must notice each
	@tools/install-deps.sh check
	@. tools/open-files.sh && tools/sabotage.py

soak: build ## the same tests with many more random trials; hours, not minutes
	@tools/soak.sh

torture: build ## kill, fault and damage Orcheck and other formats alike; table of verdicts (10 minutes)
	@tools/install-deps.sh torture
	@tools/torture.sh

bench: $(addprefix bench-,$(BENCHES)) ## run all benchmarks, one after the other

bench-%: build ## run one benchmark: table, bench/results/%.json, plot
	@tools/install-deps.sh bench
	@tools/bench.sh "$*"

fmt: ## format the Rust sources
	@$(CARGO) fmt --all

clean: ## remove what the targets above have built
	@rm -rf build
	@$(CARGO) clean
