# Each target sets up what it needs; `make env` is quick when the environment exists and is current.
PYTHON ?= python3
BIN := .venv/bin
ENV := .venv/.current
PEERS := .venv/.peers

.PHONY: env peers demo test lint format bench clean
.DELETE_ON_ERROR:

env: $(ENV)

$(ENV): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev,peer]'
	touch $@

# The last two ask for packages that their attacks do not need (torchvision, torchmetrics) and for an old requests.
peers: $(PEERS)

$(PEERS): $(ENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[bench]'
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps -c constraints.txt torchattacks rai-toolbox
	touch $@

demo: env
	$(BIN)/sihg reproduce digits --methods natural,pgd,msi-hg --trials 2

test: env
	$(BIN)/python -m pytest -n 2 --dist worksteal --cov --cov-report=term

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
	rm -rf .venv .coverage .hypothesis .mypy_cache .pytest_cache .ruff_cache runs
