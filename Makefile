# Two commands matter: `make demo` and `make test`. Both create .venv and install what they need,
# and install nothing a second time while pyproject.toml and constraints.txt stay the same.

PYTHON ?= $(shell command -v python3.11 || command -v python3.12 || command -v python3.13 || command -v python3)
VENV   := .venv
BIN    := $(VENV)/bin
# Bytecode is written at the first import of each module: pip would compile all of torch.
PIP    := $(BIN)/python -m pip --disable-pip-version-check install --quiet --no-compile --constraint constraints.txt
JOBS   ?= 2
# Networks here are small: one thread each beats threads that wait for one another.
export OMP_NUM_THREADS ?= 1
# Commands start hundreds of times in the tests: each would compile the package anew.
unexport PYTHONDONTWRITEBYTECODE
# LeRobot 0.4, the newest for Python 3.11, wants a torch below 2.11, and constraints.txt names a newer
# one: it has an environment of its own, in the user's cache, made once per machine. evdev, which it
# needs, is built from source.
LEROBOT := $(PYTHON) environments/install.py environments/lerobot.txt --needs-header linux/input.h
# ManiSkill is large and few tests need it, so it has one, too. The tests run in its Python.
MANISKILL := $(PYTHON) environments/install.py environments/maniskill.txt
# Prints the path of the browser that is there.
CHROMIUM := { command -v chromium || command -v chromium-browser || command -v google-chrome; }
# Output folder of `make demo`.
DEMO   ?= runs/quickstart
# Chunks that `make torn-reads` looks at beside one writer, and again beside two.
CHUNKS ?= 10000000

# Accelerations and control steps that `make nightly` verifies, from usual to nearly equally strong.
BOUNDS_1 := ego_accel=2.0 partner_accel=0.7 dts=[0.05,0.02]
BOUNDS_2 := ego_accel=5.0 partner_accel=4.99 dts=[0.3]
BOUNDS_3 := ego_accel=5.0 partner_accel=4.8 dts=[0.3,0.1]
BOUNDS_4 := ego_accel=20.0 partner_accel=15.0 dts=[0.3,0.05]
VERIFY    = $(BIN)/cadenza safety verify --quiet --plant zoh --out runs/nightly/$@

.DEFAULT_GOAL := help
.PHONY: help demo postgresql test test-fast test-browser test-lerobot test-teamwork test-maniskill chromium explore torn-reads nightly lint format record pages bench docs clean clean-environments

help: ## Show this list
	@awk -F':.*## ' '/^[a-z-]+:.*## / {printf "  \033[1m%-18s\033[0m %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 14))' || \
		{ echo "Python 3.11, 3.12 or 3.13 is needed, $(PYTHON) is another; pass PYTHON=/path/to/python3.11" >&2; exit 1; }
	@$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: pyproject.toml constraints.txt | $(BIN)/python
	@echo "Installing cadenza into $(VENV) (about a minute on a fresh machine) ..."
	@$(PIP) --editable '.[loop]'
	@touch $@

$(VENV)/.installed-dev: pyproject.toml constraints.txt | $(BIN)/python
	@echo "Installing cadenza and its development tools into $(VENV) (about two minutes on a fresh machine) ..."
	@$(PIP) --editable '.[dev]'
	@touch $(VENV)/.installed $@

$(VENV)/.installed-bench: $(VENV)/.installed-dev
	@$(PIP) --editable '.[dev,bench-jax,bench-vmas,bench-rliable]'
	@touch $@

demo: $(VENV)/.installed ## Train, guard and evaluate an ego robot, three seeds; write the report (about three minutes, more on a slow machine)
	@$(BIN)/cadenza quickstart --out $(DEMO)

# The job store is tested on a real PostgreSQL server; Debian's own cluster is not wanted for that.
postgresql:
	@command -v postgres >/dev/null || ls /usr/lib/postgresql/*/bin/postgres >/dev/null 2>&1 || { \
		if [ "$$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then \
			echo "No PostgreSQL server programs: its tests are skipped (apt-get install postgresql)" >&2; \
		else \
			mkdir -p /etc/postgresql-common && \
			echo "create_main_cluster = false" > /etc/postgresql-common/createcluster.conf && \
			apt-get update -qq && \
			DEBIAN_FRONTEND=noninteractive apt-get install -qq --no-install-recommends postgresql >/dev/null; \
		fi; }

test: $(VENV)/.installed-dev postgresql ## Run every test
	@$(BIN)/python -m pytest --numprocesses $(JOBS) --dist worksteal

test-fast: $(VENV)/.installed-dev postgresql ## Run the tests that take seconds
	@$(BIN)/python -m pytest --numprocesses $(JOBS) --dist worksteal -m 'not slow'

chromium:
	@$(CHROMIUM) >/dev/null || { \
		if [ "$$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then \
			echo "No Chromium: the dashboard is not tested in a browser (apt-get install chromium)" >&2; \
		else \
			apt-get update -qq && \
			DEBIAN_FRONTEND=noninteractive apt-get install -qq --no-install-recommends chromium >/dev/null; \
		fi; }

test-browser: $(VENV)/.installed-dev chromium ## Use the dashboard in a real browser, Chromium (350 MB once)
	@browser=$$($(CHROMIUM)) || exit 0; CADENZA_CHROMIUM=$$browser $(BIN)/python -m pytest tests/browser

test-lerobot: $(VENV)/.installed-dev ## Load datasets and run a loop with the real LeRobot (8.5 GB once, minutes)
	@python=$$($(LEROBOT)) && CADENZA_LEROBOT_PYTHON=$$python $(BIN)/python -m pytest tests/lerobot

$(VENV)/overcooked: environments/overcooked.txt | $(VENV)/.installed-dev
	@rm -rf $@ && $(PIP) --no-deps --target $@ --requirement $<

test-teamwork: $(VENV)/overcooked ## Play foraging and Overcooked with their packages (150 MB once)
	@PYTHONPATH=$< $(BIN)/python -m pytest tests/unit/envs/test_teamwork_envs.py tests/unit/envs/test_registered_ids.py

test-maniskill: ## Run the ManiSkill tasks without a renderer, and with one where it is (3 GB once, minutes)
	@python=$$($(MANISKILL)) && PYTHONPATH=src $$python -m pytest tests/maniskill tests/unit/envs/test_registered_ids.py

explore: $(VENV)/.installed-dev ## Run the property tests on new random examples
	@CADENZA_HYPOTHESIS=explore $(BIN)/python -m pytest --numprocesses $(JOBS) --dist worksteal tests/property

torn-reads: $(VENV)/.installed-dev ## Look for torn chunks among CHUNKS (ten million) beside one and two writers (minutes)
	@$(BIN)/python -m tests.integration.stream.torn_reads_table --chunks $(CHUNKS)

verify-measured: $(VENV)/.installed-dev
	@$(BIN)/cadenza safety verify --quiet --out runs/nightly/$@ --partners 1 position_error=0.005 \
		velocity_error=0.02 steps=10000000 compared_share=0.0005

verify-several: $(VENV)/.installed-dev
	@$(VERIFY) --partners 2 --partners 3 several_steps=1000000 multi_partner=passive contact_speed=0.25

verify-%: $(VENV)/.installed-dev
	@$(VERIFY) --partners 1 delays=[none] stationary=false steps=25000000 compared_share=0.0001 $(BOUNDS_$*)

attack-measured: $(VENV)/.installed-dev
	@$(BIN)/cadenza safety verify --quiet --robot velocity --steps 1000000 --out runs/nightly/$@ worlds=[free] \
		schemes=[norm-escape,axis-escape,ideal-escape,lag-escape] position_error=0.005 velocity_error=0.05 max_age_steps=2

# Every response and claim with a delay of commands, old packets, and errors, of walls too.
attack-late: $(VENV)/.installed-dev
	@$(BIN)/cadenza safety verify --quiet --robot velocity --steps 1000000 --out runs/nightly/$@ delay_steps=1.6 \
		position_error=0.01 velocity_error=0.05 max_age_steps=2

# A million steps of every response and claim of one kind of robot.
attack-%: $(VENV)/.installed-dev
	@$(BIN)/cadenza safety verify --quiet --robot $* --steps 1000000 --out runs/nightly/$@

# Every campaign is run, whatever became of those before it.
nightly: $(VENV)/.installed-dev postgresql ## Run every campaign at full size: tests, coverage of code and of intervals, Python 3.12 and 3.13, new examples, torn reads, the filter, speed (hours)
	@failed=0; run() { echo "== $$*"; "$$@" || failed=1; }; \
	run env CADENZA_TESTS=nightly $(BIN)/python -m pytest --numprocesses $(JOBS) --dist worksteal \
		--cov=cadenza --cov-report=html:runs/nightly/coverage; \
	for version in 3.12 3.13; do \
		if python$$version -c '' 2>/dev/null; then \
			run $(MAKE) test PYTHON=python$$version VENV=$(VENV)/python$$version; \
		else \
			echo "No python$$version: not tested with it" >&2; \
		fi; \
	done; \
	run $(BIN)/python -m tools.coverage_table --check; \
	for part in test-browser test-maniskill test-teamwork explore torn-reads; do run $(MAKE) $$part; done; \
	run $(MAKE) --keep-going --jobs=$(JOBS) $(addprefix verify-,1 2 3 4 several measured) \
		$(addprefix attack-,velocity unicycle acceleration measured late); \
	python=$$($(MANISKILL)) || failed=1; run env CADENZA_MANISKILL_PYTHON=$$python $(MAKE) bench; \
	exit $$failed

lint: $(VENV)/.installed-dev ## Check style, types and the import floors
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/pyright
	@$(BIN)/lint-imports

format: $(VENV)/.installed-dev ## Format the code
	@$(BIN)/ruff check --fix-only .
	@$(BIN)/ruff format .

record: $(VENV)/.installed-dev ## Play the demo afresh, and write README's figures and picture from it (minutes)
	@$(BIN)/python -m tools.records --quickstart runs/record

pages: $(VENV)/.installed-dev ## Write what the code knows of the learning algorithms into their pages
	@$(BIN)/python -m tools.learning_pages

bench: $(VENV)/.installed-bench ## Measure the hot paths beside public peers and print the ratios
	@$(BIN)/python -m perf

docs: $(VENV)/.installed-dev ## Build the documentation into site/
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet && echo "site/index.html"

clean: ## Remove .venv, caches and built pages (results in runs/ stay)
	rm -rf $(VENV) site dist build .pytest_cache .ruff_cache .hypothesis .coverage .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

clean-environments: ## Remove what test-lerobot and test-maniskill installed in the user's cache, for all checkouts
	@$(PYTHON) environments/install.py --remove-all
