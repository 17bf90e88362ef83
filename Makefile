# Everything a newcomer needs: `make demo`, `make test`. Each does its own set-up in .venv.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.ready

.PHONY: demo test campaign soak fuzz fuzz-openapi test-engine test-agent lint bench bench-engine kernels clean

$(STAMP): pyproject.toml constraints.txt
	@echo "== setting up $(VENV) (once; about a minute) =="
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "TokTier needs Python 3.11 or newer; set PYTHON=/path/to/python3.11")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --disable-pip-version-check -q -U pip
	$(BIN)/python -m pip install --disable-pip-version-check --progress-bar on -c constraints.txt -e '.[test]'
	@touch $@

demo: $(STAMP)
	$(BIN)/python -m tools.demo

# Tests on one real tokenizer run in one process, which loads it once.
test: $(STAMP)
	$(BIN)/python -m pytest -m 'not engine and not agent' -n auto --dist loadgroup

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# A short differential campaign over every tokenizer of the test data; CAMPAIGN_SECONDS for each.
CAMPAIGN_SECONDS ?= 15
campaign: $(STAMP)
	$(BIN)/python -m tools.campaigns $${TOKTIER_TEST_DATA:-../shared}/tokenizers --seconds $(CAMPAIGN_SECONDS)

# A proxy under everything at once for SOAK_SECONDS: what it leaves behind must be nothing.
SOAK_SECONDS ?= 180
soak: $(STAMP)
	$(BIN)/python -m tools.soak --seconds $(SOAK_SECONDS) --sessions 200 --json var/soak.json

# Hostile HTTP and JSON against a proxy process; FUZZ_INPUTS in all.
FUZZ_INPUTS ?= 4000
fuzz: $(STAMP)
	$(BIN)/python -m tools.fuzz --inputs $(FUZZ_INPUTS) --json var/fuzz.json

# What docs/openapi.json describes, and what it does not, sent by schemathesis (in an environment of its own).
OPENAPI_EXAMPLES ?= 20
OPENAPI_VENV := .venv-openapi
fuzz-openapi: $(STAMP)
	@test -x $(OPENAPI_VENV)/bin/st || $(PYTHON) -m venv $(OPENAPI_VENV)
	@$(OPENAPI_VENV)/bin/python -m pip install --disable-pip-version-check -q 'schemathesis>=4.32,<5'
	$(BIN)/python -m tools.fuzz.described $(OPENAPI_VENV)/bin/st --examples $(OPENAPI_EXAMPLES)

test-engine: $(STAMP)
	TOKTIER_TEST_ENGINE=1 $(BIN)/python -m pytest tests/engine -m engine

test-agent: $(STAMP)
	TOKTIER_TEST_AGENT=1 $(BIN)/python -m pytest tests/agent -m agent

# The GPU kernels for every architecture, into toktier/gpu/kernels. Needs nvcc of CUDA 13; no GPU.
kernels: $(STAMP)
	$(BIN)/python -m tools.kernels

# What needs no engine; a suite that misses a target on this machine ends with 1, and the others still run.
bench: $(STAMP)
	-$(BIN)/python -m tools.bench repair --json var/bench/repair.json
	-$(BIN)/python -m tools.bench render --json var/bench/render.json
	-$(BIN)/python -m tools.bench proxy --json var/bench/proxy.json

# Beside a real vLLM on the CPU, which test-engine builds as well.
bench-engine: $(STAMP)
	-$(BIN)/python -m tools.bench proxy --json var/bench/proxy.json --vllm
	$(BIN)/python -m tools.bench engine --json var/bench/engine.json

clean:
	rm -rf $(VENV) $(OPENAPI_VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis var toktier/gpu/kernels
