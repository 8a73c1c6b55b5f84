# Each target sets up what it needs. `make env` does nothing if the environment is up to date.
PYTHON ?= python3
BIN := .venv/bin
ENV := .venv/.current
PEERS := .venv/.peers

.PHONY: env peers demo test test-processes test-lowest lint format bench clean
.DELETE_ON_ERROR:

env: $(ENV)

$(ENV): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev,peer]'
	touch $@

# Without dependencies: torchattacks and rai-toolbox require packages that their attacks do not use (torchvision,
# torchmetrics) and an old version of requests.
peers: $(PEERS)

$(PEERS): $(ENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[bench]'
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps -c constraints.txt torchattacks rai-toolbox
	touch $@

demo: env
	$(BIN)/sihg reproduce digits --methods natural,pgd,msi-hg --trials 2

test: env
	$(BIN)/python -m pytest -n 2 --dist worksteal --cov --cov-report=term

# One after the other: each starts up to four processes.
test-processes: env
	$(BIN)/python -m pytest -m processes

# The same tests with the lowest versions that pyproject.toml allows (lowest.txt), on Python 3.11. From PyPI, torch 2.6
# brings 5 GB of CUDA; PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu gives its small build for CPUs.
LOWEST := .venv-lowest/bin/python
test-lowest:
	test -x $(LOWEST) || python3.11 -m venv .venv-lowest
	$(LOWEST) -m pip install --quiet --disable-pip-version-check -c lowest.txt -e . datasets hypothesis pytest pytest-cov pytest-xdist tensorboardX
	$(LOWEST) -m pytest -n 2 --dist worksteal

lint: env
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy src tests benchmarks

format: env
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: peers
	$(BIN)/python -m benchmarks --out runs/bench

clean:
	rm -rf .venv .venv-lowest .coverage .hypothesis .mypy_cache .pytest_cache .ruff_cache runs
