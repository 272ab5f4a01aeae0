# Everything a developer types. `make` alone lists it.
SHELL := /bin/bash
VENV := .venv
BIN := $(VENV)/bin
TORCH := torch==2.13.0
# Installed without their dependencies: NVRx's launcher needs none that torch does not bring.
PEERS := nvidia-resiliency-ext==0.4.1 defusedxml
# What the heartbeat has hooks for; Trainer of transformers needs accelerate. Actors of Ray are found without ranks.
FRAMEWORKS := accelerate lightning pytorch_lightning transformers ray jax
# NVIDIA's library of collectives, 350 MB. It loads without a GPU.
NCCL := nvidia-nccl-cu12==2.32.3
# Grafana's published types of dashboards, and the compiler that checks them.
GRAFANA_TYPES := @grafana/schema@11.6.0 typescript@5.4.5

# Finds problems of accessibility on the pages. MPL-2.0, used by tests only.
AXE := axe-core@4.14.1

# A usable Python >= 3.10; a name on PATH may be a shim that does not work, so each is run.
PYTHON ?= $(shell for p in python3.11 python3.12 python3.13 python3.14 python3.10 python3; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 10))' >/dev/null 2>&1 && echo $$p && break; done)
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

# What both distributions are built with. pip would install it anew for each of them.
BUILD := hatchling editables hatch-fancy-pypi-readme

# Helm, and what checks the role in deploy/ansible: for the newer Pythons.
FROM_3_11 := 'helm-python-sdk; python_version >= "3.11"' 'ansible-core; python_version >= "3.11"'

# Where `make dist` writes.
DIST := dist

# Without byte code every process of every test would compile the sources again.
PYTEST := env -u PYTHONDONTWRITEBYTECODE $(BIN)/python -m pytest
# What make test-system runs beside each other.
SYSTEM := (system or long or hypothesis or thorough) and not (torch or packages or alone or cluster)
# A test with real deadlines may fail while others use the machine. Then it must pass alone.
AGAIN = { [[ $$? = 1 ]] && echo "what failed, again and alone:" && \
	$(PYTEST) --last-failed --last-failed-no-failures none -m '$(1)' --hypothesis-profile thorough; }

.PHONY: help demo test quick test-pythons test-system test-torch test-nccl test-gpu test-cluster test-packages browser screenshots lint format docs dashboards dashboard-types single-file dist chart packages images bench accuracy clean
.DEFAULT_GOAL := help

help: ## list the commands
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-15s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(VENV)/.ready ## hang a real 8-rank job and watch watchtower name the rank (about a minute)
	@$(BIN)/watchtower drill dataloader_sleep --backend stdlib --stay

test: $(VENV)/.ready-dev ## run the tests that stay in process, and three drills (a minute)
	@env -u PYTHONDONTWRITEBYTECODE $(BIN)/python -m tests.quick

quick: $(VENV)/.ready-dev ## run the tests of what you changed since the last commit (about 10 s)
	@env -u PYTHONDONTWRITEBYTECODE $(BIN)/python -m tests.quick --changed

# Each interpreter has an environment of its own below $(VENV). Contracts are left out: they read the documents
# and the code.
test-pythons: $(VENV)/.ready-dev ## the same on the system's Python, the oldest and the newest found
	@set -e; for python in $$($(BIN)/python tests/interpreters.py); do \
		version=$$($$python -c 'import platform; print(platform.python_version())'); \
		echo "the quick tests on Python $$version ($$python)"; \
		own=$(VENV)/pythons/$$version; \
		test -x $$own/bin/python || $$python -m venv $$own; \
		[[ $$own/.ready -nt $(VENV)/.ready-dev ]] || { \
			$$own/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt \
				-e ./heartbeat -e '.[all,test]'; \
			touch $$own/.ready; }; \
		env -u PYTHONDONTWRITEBYTECODE $$own/bin/python -m tests.quick --without contract; \
	done

test-system: $(VENV)/.ready-dev ## run the tests that start processes, but for those that need torch
	@$(PYTEST) -n 6 -m '$(SYSTEM)' --hypothesis-profile thorough || $(call AGAIN,$(SYSTEM))
	@$(PYTEST) tests/system -m alone

browser: $(VENV)/.ready-browser $(VENV)/axe/.ready ## install what tests of the pages need, with npm; not Chromium itself

screenshots: $(VENV)/.ready-browser ## write the pictures of the pages in docs/pages, with Chromium
	@$(BIN)/python -m tests.system.ui.screenshots docs/pages

test-torch: $(VENV)/.ready-torch ## install torch (large) and run the tests that need it
	@$(PYTEST) -n 2 -m torch tests/system || $(call AGAIN,torch)

test-nccl: $(VENV)/.ready-nccl ## install NVIDIA's NCCL (large) and run the tests that need it, without a GPU
	@$(PYTEST) tests/system/agent/test_agent_real_nccl.py

test-cluster: $(VENV)/.ready-dev ## kill towers and PostgreSQL in turn, write docs/reliability.md (10 minutes; ROUNDS=50 for hours)
	@$(PYTEST) -m cluster tests/system/cluster
	@$(BIN)/python -m tests.system.cluster.run --rounds $(or $(ROUNDS),3) --write docs/reliability.md

test-packages: $(VENV)/.ready-dev $(VENV)/.ready-packages ## use the Debian packages in a clean root (as root), check charts and manifests
	@$(PYTEST) -rs -m packages tests/system/deploy
	@$(PYTEST) -rs tests/deploy/test_kubernetes.py tests/deploy/test_chart.py

test-gpu: $(VENV)/.ready-dev ## run the tests that need a GPU and write docs/gpu-notes.md; without a GPU, say so
	@$(PYTEST) -rs tests/system/gpu
	@$(BIN)/python -m tests.system.gpu.record docs/gpu-notes.md

lint: $(VENV)/.ready-dev ## format check, lint, types, layers, spelling
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/codespell

format: $(VENV)/.ready-dev ## format the code and fix what can be fixed
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: $(VENV)/.ready-dev ## write what is generated: parts of the documents, Grafana's alerts
	$(BIN)/python -m dashboards.alert_rules
	$(BIN)/python -m tests.generated_docs

dashboards: $(VENV)/.ready-dev ## write the JSON files of the Grafana dashboards from dashboards/*.py
	$(BIN)/python -m dashboards

dashboard-types: $(VENV)/.ready-dev $(VENV)/grafana/.ready ## check the dashboards against Grafana's types, with npm
	@$(PYTEST) tests/system/test_dashboard_types.py

SOURCE_DATE_EPOCH ?= $(shell git log -1 --format=%ct)

# The time in the archives is that of the commit, so that everybody builds the same bytes.
dist: $(VENV)/.ready ## write wheels and sdists of both distributions to dist/, always the same bytes
	@umask 022 && SOURCE_DATE_EPOCH=$(SOURCE_DATE_EPOCH) $(BIN)/hatchling build -d '$(abspath $(DIST))'
	@umask 022 && cd heartbeat && SOURCE_DATE_EPOCH=$(SOURCE_DATE_EPOCH) $(abspath $(BIN))/hatchling build -d '$(abspath $(DIST))'
	@cd '$(DIST)' && sha256sum *watchtower*.whl *watchtower*.tar.gz

single-file: $(VENV)/.ready ## write dist/watchtower.pyz: snapshot and diagnose as one file to copy
	@$(BIN)/python deploy/single_file/build.py dist/watchtower.pyz

chart: $(VENV)/.ready-packages ## write the chart's archive to dist/, and the one-file manifest from the chart
	@mkdir -p '$(DIST)' && $(BIN)/python deploy/kubernetes/render.py '$(DIST)'

packages: $(VENV)/.ready-packages dist ## write .deb, and .rpm where rpmbuild is, for the system's Python to dist/
	@SOURCE_DATE_EPOCH=$(SOURCE_DATE_EPOCH) /usr/bin/python3 deploy/packages/build.py '$(DIST)' '$(DIST)'
	@ls '$(DIST)'/watchtower*.{deb,rpm} 2>/dev/null || true

images: packages ## write the images of tower and agent to dist/, with mmdebstrap (as root)
	@SOURCE_DATE_EPOCH=$(SOURCE_DATE_EPOCH) /usr/bin/python3 deploy/images/build.py '$(DIST)'

bench: $(VENV)/.ready-dev ## measure: cost of a beat, fault-to-verdict times, harm to a job
	$(BIN)/python benchmarks/heartbeat.py
	$(BIN)/python benchmarks/latency.py
	$(BIN)/python benchmarks/harm.py

accuracy: $(VENV)/.ready-peers ## the score: faults 5 times with the peers, 2 job-hours healthy, docs/accuracy.md (hours, resumes)
	$(BIN)/python -m benchmarks.accuracy.run
	$(BIN)/python -m benchmarks.accuracy.matrix
	-$(BIN)/python -m benchmarks.accuracy.healthy
	$(BIN)/python -m benchmarks.accuracy.live
	$(BIN)/python -m benchmarks.accuracy.field
	$(BIN)/python -m benchmarks.accuracy.report

clean: ## remove the environment and caches
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache

$(VENV)/.venv:
	@test -n "$(PYTHON)" || { echo "Python 3.10 or newer is needed and not on PATH"; exit 1; }
	@echo "making $(VENV) with $(PYTHON) (once)"
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); \
		echo "on Debian and Ubuntu: sudo apt install python3-venv"; exit 1; }
	@touch $@

$(VENV)/.ready: $(VENV)/.venv pyproject.toml heartbeat/pyproject.toml \
		heartbeat/watchtower_heartbeat_auto.pth constraints.txt
	@echo "installing watchtower into $(VENV) (once)"
	@$(INSTALL) $(BUILD)
	@$(INSTALL) --no-build-isolation -e ./heartbeat -e '.[all]'
	@touch $@

$(VENV)/.ready-dev: $(VENV)/.ready
	@echo "installing the development tools into $(VENV) (once)"
	@$(INSTALL) --no-build-isolation -e ./heartbeat -e '.[all,dev]'
	@touch $@

$(VENV)/.ready-packages: $(VENV)/.ready
	@$(INSTALL) argparse-manpage kubernetes-validate $(FROM_3_11)
	@touch $@

$(VENV)/.ready-torch: $(VENV)/.ready-dev
	@$(INSTALL) $(TORCH) $(FRAMEWORKS)
	@touch $@

$(VENV)/.ready-nccl: $(VENV)/.ready-dev
	@$(INSTALL) --no-deps $(NCCL)
	@touch $@

$(VENV)/.ready-browser: $(VENV)/.ready-dev
	@$(INSTALL) --no-build-isolation -e '.[browser]'
	@touch $@

$(VENV)/axe/.ready: $(VENV)/.venv
	npm install --silent --no-audit --no-fund --ignore-scripts --prefix $(VENV)/axe $(AXE)
	@touch $@

$(VENV)/.ready-peers: $(VENV)/.ready-torch
	@$(INSTALL) --no-deps $(PEERS)
	@touch $@

$(VENV)/grafana/.ready: $(VENV)/.venv
	npm install --silent --no-audit --no-fund --ignore-scripts --prefix $(VENV)/grafana $(GRAFANA_TYPES)
	@touch $@

include deploy/install.mk
