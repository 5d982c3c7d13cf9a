# Every command that a developer needs. `make help` lists them.

VENV := .venv
BIN := $(VENV)/bin
FLOWER := .venv-flower
PEERS := .venv-peers
STAMP := $(VENV)/.stamp
JOBS ?= 2
SEED ?= 0
OUT ?= runs/demo-$(shell date +%Y%m%d-%H%M%S)

# packages are installed without compiling what is never imported; what is, is compiled once and not in every process
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.PHONY: help venv demo demo-federation demo-peers demo-flower test test-kernel test-distributed test-slow test-faults fuzz mutants check format format-check lint types layers docs docs-version coverage bench bench-scaling bench-runs bench-audit bench-statistics bench-more device-wheels device-check clean

help: ## list the commands
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

venv: $(STAMP) ## create or update .venv (Python 3.11 to 3.13, versions of constraints.txt)

$(STAMP): pyproject.toml constraints.txt
	@set -e; \
	test -x $(BIN)/python || for candidate in "$(PYTHON)" python3.11 python3.12 python3.13 python3 python; do \
	  if test -n "$$candidate" && "$$candidate" -c 'import ensurepip, sys, venv; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' 2>/dev/null; then \
	    echo "creating $(VENV) with $$("$$candidate" --version)"; \
	    "$$candidate" -m venv $(VENV); \
	    break; \
	  fi; \
	done; \
	test -x $(BIN)/python || { \
	  echo "error: no Python 3.11, 3.12 or 3.13 with its venv module was found." >&2; \
	  echo "Install one (on Debian and Ubuntu: python3.12 python3.12-venv), or name it: make venv PYTHON=/path/to/python3.12" >&2; \
	  exit 1; \
	}; \
	$(BIN)/python -m pip install --quiet --no-compile --disable-pip-version-check --constraint constraints.txt --editable '.[dev,docs]'; \
	touch $(STAMP)

demo: venv ## train on scikit-learn's digits; prints accuracy, epsilon and where the pictures are (under a minute)
	$(BIN)/fedpriv train configs/digits_iadmm.yaml --out $(OUT)

# flwr wants other versions of some packages than constraints.txt; those that decide numbers and gigabytes stay pinned
$(FLOWER)/.stamp: pyproject.toml constraints.txt
	$(BIN)/python -m venv $(FLOWER)
	grep -E '^(torch|torchvision|numpy|scipy|opacus|dp-accounting)==' constraints.txt > $(FLOWER)/constraints.txt
	$(FLOWER)/bin/python -m pip install --quiet --no-compile --disable-pip-version-check --constraint $(FLOWER)/constraints.txt --editable '.[flower,zenoh]' pytest hypothesis
	touch $@

demo-federation: venv ## five hospitals over Zenoh on this machine, with mutual TLS: one is killed, one ends its budget (under a minute)
	$(BIN)/python -m pytest -s -p no:cacheprovider tests/sites/test_over_zenoh.py

demo-flower: venv $(FLOWER)/.stamp ## the same over Flower, with TLS and node keys, in some minutes
	$(FLOWER)/bin/python -m pytest -s -p no:cacheprovider -m slow tests/sites/test_over_flower.py

demo-peers: venv ## five hospitals on a graph without a server, over mutual TLS on this machine: one is killed and returns
	$(BIN)/python -m pytest -s -p no:cacheprovider -m slow tests/sites/test_peers_over_zenoh.py

test: venv ## run the tests, but for those that take minutes
	$(BIN)/python -m pytest -n $(JOBS) --dist worksteal -m 'not slow and not distributed'

# the rooms of the kernel, without tests of layers, libraries and devices that it does without, of options that few runs
# use, and without second opinions that take long: `make test` runs these too
KERNEL_TESTS := clients distributed evaluation golden models network oracle planning privacy randomness runs settings storage \
  strategies test_architecture.py test_contract.py test_theorems.py
BEYOND_KERNEL := clients/test_augmentation.py clients/test_lazy_clients.py distributed/test_device_counts.py \
  models/test_battery.py models/test_hugging_face.py models/test_hugging_face_lora.py models/test_lora.py \
  models/test_opacus_layers.py models/test_torch_script.py network/test_client_state.py oracle/test_attention.py \
  oracle/test_chains.py oracle/test_constraint_sensitivity.py oracle/test_mixed_precision.py oracle/test_recurrent.py \
  oracle/test_stable_choice.py oracle/test_views.py privacy/test_allocation_accounting.py privacy/test_correlated_audit.py \
  privacy/test_exact_pairs.py privacy/test_float64_noise.py privacy/test_independent_price.py \
  privacy/test_opacus_history.py runs/test_extend.py runs/test_report_groups.py

test-kernel: venv ## run the tests of the kernel alone, in at most five minutes on two cores
	$(BIN)/python -m pytest -n $(JOBS) --dist worksteal -m 'not slow and not distributed' \
	  $(KERNEL_TESTS:%=tests/%) $(BEYOND_KERNEL:%=--ignore=tests/%)

test-distributed: venv ## runs of several processes: every kind, on one, two and three; killed, hung, and gone on with
	$(BIN)/python -m pytest tests/processes
	$(BIN)/python -m pytest -m 'not slow' tests/sites

test-slow: venv ## run the tests that take minutes
	$(BIN)/python -m pytest -n $(JOBS) --dist worksteal -m slow

test-faults: venv ## kill runs, cut their power and fill their disk at every file operation, for seven strategies, and at random
	$(BIN)/python -m pytest -n $(JOBS) --dist worksteal tests/faults

fuzz: venv ## made-up configurations, damaged data files and run folders: N of each (N=1000)
	FEDPRIV_FUZZ=$(or $(N),1000) $(BIN)/python -m pytest -n $(JOBS) --dist worksteal tests/fuzz

mutants: venv ## change the code that a guarantee rests on in N places (N=400, SEED says which) and see whether the tests notice
	$(BIN)/python tests/mutants --count $(or $(N),400) --seed $(SEED) --jobs $(JOBS)

check: format-check lint types layers docs coverage ## everything that must pass before a change is merged

format: venv ## rewrite the code in the project's format, with the safe fixes of the linter
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

format-check: venv
	$(BIN)/ruff format --check

lint: venv ## ruff
	$(BIN)/ruff check

types: venv ## pyright, strict on fedpriv/
	$(BIN)/pyright

layers: venv ## import-linter: who may import whom
	$(BIN)/lint-imports --no-logo

docs: venv ## build the documentation into site/, warnings are errors
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

docs-version: venv ## build the documentation as VERSION=0.2 into the branch gh-pages, beside other versions; pushes nothing
	NO_MKDOCS_2_WARNING=1 $(BIN)/mike deploy --update-aliases $(VERSION) latest
	$(BIN)/mike set-default latest

coverage: venv ## the tests, with at least 95 % of fedpriv/privacy covered
	$(BIN)/python -m pytest -n $(JOBS) --dist worksteal -m 'not slow and not distributed' --cov --cov-report=
	$(BIN)/coverage report --include='fedpriv/privacy/*' --fail-under=95

bench: venv ## the table of speed: each line a ratio of contenders that take turns (TABLE=file writes it, under 10 minutes)
	$(BIN)/python benchmarks/speed/table.py $(if $(TABLE),--markdown $(TABLE))

bench-scaling: venv ## how a round grows with clients, parameters and examples: slopes, and runs/scaling.png
	$(BIN)/python benchmarks/speed/scaling.py --picture runs/scaling.png $(if $(TABLE),--markdown $(TABLE))

bench-runs: venv ## where the time of whole runs goes, in shares; reads $$FEDPRIV_DATA
	$(BIN)/python benchmarks/speed/whole_runs.py $(if $(TABLE),--markdown $(TABLE))

bench-audit: venv ## which deficit of noise an audit finds, how probably: half an hour (TABLE=file writes it)
	$(BIN)/python benchmarks/audit/power.py $(if $(TABLE),--markdown $(TABLE))

# diffprivlib imports names that later versions of scikit-learn lack
$(PEERS)/.stamp:
	$(BIN)/python -m venv $(PEERS)
	$(PEERS)/bin/python -m pip install --quiet --disable-pip-version-check 'opendp==0.16.*' 'diffprivlib==0.6.*' 'scikit-learn<1.6' 'numpy<2.3'
	touch $@

bench-statistics: venv $(PEERS)/.stamp ## errors of private statistics next to OpenDP and diffprivlib; reads $$FEDPRIV_DATA
	$(BIN)/python benchmarks/reproduce/private_statistics.py --peer $(PEERS)/bin/python

bench-more: venv ## nodes of a sparse graph, the disk of a ledger, noise of pairs, how long it takes to start, a million clients, two cores, a GPU
	$(BIN)/python benchmarks/speed/nodes.py
	$(BIN)/python benchmarks/speed/durability.py
	$(BIN)/python benchmarks/speed/pairs.py
	$(BIN)/python benchmarks/speed/startup.py
	$(BIN)/python benchmarks/speed/million.py
	$(BIN)/python benchmarks/speed/cores.py
	$(BIN)/python benchmarks/speed/processes.py
	$(BIN)/python benchmarks/speed/borders.py
	$(BIN)/python benchmarks/speed/device.py

DEVICE := build/device
RESULTS ?= runs/device
# of packages that PyTorch's own environments for GPUs lack, for CPython 3.12 on x86-64; most preferred first
PLATFORM := --python-version 3.12 --implementation cp --only-binary=:all: \
  --platform manylinux_2_28_x86_64 --platform manylinux_2_27_x86_64 --platform manylinux_2_24_x86_64 \
  --platform manylinux_2_17_x86_64 --platform manylinux2014_x86_64 --platform manylinux1_x86_64

device-wheels: venv ## what a machine with a GPU and without a network lacks, into build/device: wheels, and data of $$FEDPRIV_DATA
	rm -rf $(DEVICE)/wheels $(DEVICE)/data
	mkdir -p $(DEVICE)/wheels
	$(BIN)/python -m pip download --quiet --disable-pip-version-check --constraint constraints.txt $(PLATFORM) \
	  --dest $(DEVICE)/wheels pydantic cryptography
	$(BIN)/python -m pip download --quiet --disable-pip-version-check --constraint constraints.txt $(PLATFORM) \
	  --no-deps --dest $(DEVICE)/wheels dp-accounting dm-tree opacus reportlab filelock lazy-loader
	@for set in mnist femnist; do \
	  if test -n "$$FEDPRIV_DATA" && test -d "$$FEDPRIV_DATA/$$set"; then \
	    mkdir -p $(DEVICE)/data && cp -r "$$FEDPRIV_DATA/$$set" $(DEVICE)/data/; \
	  fi; \
	done
	@du -sm $(DEVICE)/* | awk '{ print; sum += $$1 } END { if (sum > 50) { print "error: more than 50 MB"; exit 1 } }'

device-check: ## on a machine with a GPU: is it right there, and how fast? Under ten minutes (PYTHON=python3, RESULTS=folder)
	@if test -d $(DEVICE)/wheels; then \
	  $(or $(PYTHON),python3) -m pip install --quiet --no-index --no-deps --no-compile --upgrade --target $(DEVICE)/site $(DEVICE)/wheels/*.whl; \
	fi
	PYTHONPATH=$(DEVICE)/site:. $(or $(PYTHON),python3) benchmarks/device_check.py --out $(RESULTS) $(if $(wildcard $(DEVICE)/data),--data $(DEVICE)/data)

clean: ## remove what the tools made; keeps .venv and runs
	rm -rf build dist site htmlcov .coverage .coverage.* .pytest_cache .ruff_cache .import_linter_cache .hypothesis
	find fedpriv tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +
