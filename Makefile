# `make test` on a fresh machine needs Python 3.11 and make; everything else is set up in .venv and .cache.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# One job a core: the machines that run this are small and shared.
JOBS ?= $(shell nproc 2>/dev/null || echo 2)
# Workers of pytest-xdist: for one job none, which saves handing the tests over.
WORKERS = $(if $(filter 1,$(JOBS)),0,$(JOBS))
export ANSIBLE_CONFIG := $(CURDIR)/ansible.cfg
# The newest ansible-core that these tests have passed on; 2.19, which constraints.txt has, is the last for Python 3.11.
NEWEST ?= 2.21.5
# On PATH, or where pyenv and uv keep them.
NEWEST_PYTHON ?= $(shell for each in 3.14 3.13 3.12; do \
	for path in python$$each $(HOME)/.pyenv/versions/$$each.*/bin/python$$each $(HOME)/.local/share/uv/python/cpython-$$each.*/bin/python$$each; do \
		$$path -c '' 2>/dev/null && echo $$path && exit; done; done)
# What `make test` runs on the newest ansible-core alone, where its Python is here.
NEWEST_ONLY = tests/site/test_check_diff.py
# What uses the inside of Ansible, and whole runs.
NEWEST_TESTS = $(shell grep -lE '^from ansible\.(errors|parsing|plugins|template|utils)' tests/unit/test_*.py) \
	$(NEWEST_ONLY) $(if $(findstring not long,$(PYTEST_ADDOPTS)),,tests/drift/test_drift.py tests/site/test_demo.py)
# Of make test, the longest on few cores first; newest needs nothing of what setup installs.
TARGETS = newest site molecule unit cluster faults slurm drift containers collection lint fabric el nccl
# What Python compiles is kept, whatever the machine says: some 4,000 processes load the same files.
unexport PYTHONDONTWRITEBYTECODE
# Tests must not depend on, or write to, what the user keeps in ~/.ansible.
export ANSIBLE_HOME := $(CURDIR)/.cache/ansible
# A simulated node is thousands of small files, for which a disk takes 30 times the processor time: where memory has 4 GB
# for them, and programs may run there, they lie in it.
IN_MEMORY := $(shell df --output=avail -m /dev/shm 2>/dev/null | awk 'END { exit $$1 < 4000 }' && \
	grep ' /dev/shm ' /proc/mounts | grep -qv noexec && echo /dev/shm)

.PHONY: help setup lint unit related docs check faults nccl site collection collection-archive containers molecule slurm cluster fabric el drift newest test test-all test-vm trixie demo lab bench localise repair gate golden mutants clean

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | sort | expand -t 12

setup: $(VENV)/.done ## the virtual environment, pinned by constraints.txt

$(VENV)/.done: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Busbar needs Python 3.11 or later on the control node, this is %d.%d; pass PYTHON=..." % sys.version_info[:2])'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[test,report]'
	@touch $@

lint: setup ## ruff, mypy strict, ansible-lint production
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	PYTHONPATH=lab/compiled $(BIN)/ansible-lint --offline -q

ifneq ($(IN_MEMORY),)
unit related faults site drift el slurm newest collection containers molecule fabric golden mutants repair gate localise: export PYTEST_DEBUG_TEMPROOT := $(IN_MEMORY)
endif

unit: setup ## pure core, modules, structure: no root, no network
	$(BIN)/pytest -q -n $(WORKERS) tests/unit tests/samples

docs: setup ## what is written from declarations: roles' defaults and argument specs, tables of variables and checks
	$(BIN)/python -m tests.documents

check: setup ## what to run before every commit: lint, and the unit tests of what has changed; two minutes
	@$(MAKE) --keep-going --jobs=2 --output-sync=target lint related

related: setup
	$(BIN)/python -m tests.selection -q -n $(WORKERS)

faults: setup ## modules on simulated nodes: every fault of the lab, alone and in fives, is exactly its finding
	@# One more than there are cores: tools that hang are waited for.
	$(BIN)/pytest -q -n $$(($(JOBS) + 1)) tests/lab

nccl: setup ## lint and proof against real libnccl wheels (downloads 1.5 GB once)
	$(BIN)/pytest -q tests/nccl

site: setup ## whole playbook runs on simulated nodes
	@# One more than there are cores: some answers are waited for. A file makes its converged nodes once.
	$(BIN)/pytest -q -n $$(($(JOBS) + 1)) --dist loadfile tests/site $(if $(and $(findstring not long,$(PYTEST_ADDOPTS)),$(NEWEST_PYTHON)),$(NEWEST_ONLY:%=--ignore=%))

collection: setup ## build, install into an empty place, run by FQCN; sanity where it can run
	$(BIN)/pytest -q -rs tests/collection

collection-archive: setup ## the collection as a file for ansible-galaxy, in dist/; REPOSITORY=URL for Galaxy
	$(BIN)/python -m tests.archive dist "$(REPOSITORY)"

containers: setup ## the lab of containers and the suite on it; as root, installs podman where it lacks
	@# One more than there are cores: a node that boots is waited for. Each file has its own lab.
	$(BIN)/pytest -q -n $$(($(JOBS) + 1)) --dist loadfile tests/containers

molecule: setup ## the scenario of every role, some at a time
	@# One more than there are cores: a node that boots is waited for.
	BUSBAR_MOLECULE_JOBS=$$(($(JOBS) + 1)) $(BIN)/pytest -q tests/molecule

slurm: setup ## drain and resume, and the nightly check, in a real Slurm; as root, installs Debian's packages where they lack
	$(BIN)/pytest -q -n $(WORKERS) tests/slurm

cluster: setup ## jobs over four nodes by the real mpirun, ssh and srun; as root, installs Debian's packages where they lack
	$(BIN)/pytest -q tests/cluster

fabric: setup ## InfiniBand by the real ibsim, opensm and infiniband-diags, LLDP by lldpd, NICs' firmware by mstflint; as root, installs Debian's packages where they lack
	$(BIN)/pytest -q tests/fabric tests/lldp tests/firmware

el: setup ## what EL's nodes need: the real dnf, rpm, createrepo_c and nmcli of Debian; as root, installs them where they lack
	$(BIN)/pytest -q tests/el

drift: setup ## busbar drift end to end and its report in Chromium (installed as root): about five minutes on two cores
	$(BIN)/pytest -q -n $(WORKERS) tests/drift tests/report

newest: ## the tests of what Ansible runs, on the newest ansible-core that is supported; needs Python 3.12 or later
	@if [ -z "$(NEWEST_PYTHON)" ]; then \
		echo "left out: the tests on ansible-core $(NEWEST), which needs Python 3.12 or later; NEWEST_PYTHON=... names one"; \
	else \
		set -ex; mkdir -p .cache/newest; \
		grep -v '^ansible' constraints.txt >.cache/newest/constraints.txt; \
		$(NEWEST_PYTHON) -m venv .cache/newest/venv; \
		.cache/newest/venv/bin/pip install --quiet --no-compile --disable-pip-version-check --constraint .cache/newest/constraints.txt \
			ansible-core==$(NEWEST) hatchling hypothesis jsonschema pytest pytest-xdist --editable '.[report]'; \
		.cache/newest/venv/bin/pytest -q -n $$(($(JOBS) + 1)) --dist loadfile $(NEWEST_TESTS); \
	fi

golden: setup ## record the goldens in tests/golden anew; review their diff like code
	rm -rf .cache/golden
	BUSBAR_GOLDEN=$(CURDIR)/.cache/golden $(BIN)/pytest -q -n $$(($(JOBS) + 1)) -m golden tests/unit tests/samples tests/lab tests/site tests/drift
	$(BIN)/python -m tests.goldens .cache/golden

mutants: setup ## small faults planted in the product, and the share that unit tests find: NUMBER=200 SEED=1, an hour
	$(BIN)/python -m tests.mutants $(or $(NUMBER),200) $(or $(SEED),1)

test: export PYTEST_ADDOPTS = -m "not long" --hypothesis-profile=short
test: ## everything that CI runs: all but the tests marked long
	@# Four targets at a time, each with its share of the cores: much of cluster, slurm and containers is waiting, and a
	@# target whose last test runs leaves its cores to the next.
	@# A target that fails does not hide the others.
	@rm -rf .cache/durations
	@code=0; BUSBAR_TEST_DURATIONS=$(CURDIR)/.cache/durations $(MAKE) --keep-going --jobs=4 --output-sync=target JOBS=$$((($(JOBS) + 1) / 2)) \
		$(TARGETS) || code=$$?; \
	$(BIN)/python -m tests.session .cache/durations; exit $$code

test-all: ## every test, and Debian 13, virtual machines, repairs, long series, mutants; hours, as root
	$(MAKE) --keep-going $(TARGETS) test-vm trixie repair gate localise mutants

test-vm: setup ## a real kernel, GRUB, reboots and Soft-RoCE in virtual machines; as root, installs QEMU where it lacks
	$(BIN)/pytest -q tests/vm

trixie: setup ## the container lab, every role, and a virtual machine on Debian 13 (systemd 257, Python 3.13, OpenSSH 10, kernel 6.12); as root
	BUSBAR_LAB_RELEASE=trixie BUSBAR_VM_RELEASE=trixie $(MAKE) --keep-going containers molecule test-vm

demo: setup ## two simulated nodes: converge, break one, see the finding; rootless
	@PATH="$(CURDIR)/$(BIN):$$PATH" sh tests/demo.sh

lab: setup ## two simulated nodes, site.yml on them; as root in containers with a benchmark table, installs podman where it lacks
	@if [ "$$(id -u)" -eq 0 ]; then \
		$(BIN)/python -m lab up && exec $(BIN)/ansible-playbook site.yml -i inventories/lab; \
	else \
		echo "not root: the nodes are directory trees in .demo, without a benchmark; as root they are containers"; \
		[ -d .demo/inventory ] || $(BIN)/python -m lab create -d .demo && exec $(BIN)/ansible-playbook site.yml -i .demo/inventory; \
	fi

bench: setup ## figures, printed and never asserted
	$(BIN)/pytest -q -s tests/bench

localise: setup ## what the search for slow nodes finds and costs: 1,000 simulated searches a line, some 20 minutes on one core
	BUSBAR_BENCH_SEARCHES=1000 $(BIN)/pytest -q -s tests/bench/test_localise.py

repair: setup ## eight faults between nodes, one by one and three together: found, mended or kept out; half an hour, as root
	$(BIN)/pytest -q -s tests/repair

gate: setup ## the gate's program: 1,000 checks of healthy simulated nodes, every critical fault; some 20 minutes on one core
	BUSBAR_GATE_RUNS=1000 BUSBAR_GATE_FAULTS=all $(BIN)/pytest -q tests/lab/test_gate.py

clean: ## remove what make made, the lab included
	@if [ -e .lab ]; then $(MAKE) --no-print-directory setup && $(BIN)/python -m lab down; fi
	rm -rf $(VENV) .cache .demo build dist lab/compiled/__pycache__
