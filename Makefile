# Each target sets up what it needs. `make env` does nothing if the environment is up to date.
PYTHON ?= python3
BIN := .venv/bin
ENV := .venv/.current
PEERS := .venv/.peers
DOCS := .venv/.docs
INSTALL := -m pip install --quiet --disable-pip-version-check
GROUPS := 'pip>=25.1'  # the first that installs dependency groups; Debian's is older
FAST := -m "not slow and not peer"

.PHONY: env peers demo test coverage test-pages test-processes test-lowest test-newest test-extras wheel-test docs docs-serve lint format bench clean
.DELETE_ON_ERROR:

env: $(ENV)

$(ENV): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python $(INSTALL) $(GROUPS)
	$(BIN)/python $(INSTALL) -c constraints.txt -e . --group dev
	touch $@

# Without dependencies: torchattacks and rai-toolbox require packages that their attacks do not use (torchvision,
# torchmetrics) and an old version of requests.
peers: $(PEERS)

$(PEERS): $(ENV)
	$(BIN)/python $(INSTALL) -c constraints.txt --group bench
	$(BIN)/python $(INSTALL) --no-deps -c constraints.txt torchattacks rai-toolbox
	touch $@

demo: env
	$(BIN)/sihg reproduce digits --methods natural,pgd,msi-hg --trials 2

test: env
	$(BIN)/python -m pytest -n 2 --dist worksteal

coverage: env
	$(BIN)/python -m pytest -n 2 --dist worksteal --cov --cov-report=term

# Report pages in Chromium, which must be on this machine; elsewhere the tests are skipped, with the reason.
PAGES := .venv/.pages
$(PAGES): $(ENV)
	$(BIN)/python $(INSTALL) -c constraints.txt --group pages
	touch $@

test-pages: $(PAGES)
	$(BIN)/python -m pytest -rs tests/pages

# One after the other: each starts up to four processes.
test-processes: env
	$(BIN)/python -m pytest -m processes

# The fast tests with the lowest versions that pyproject.toml allows (lowest.txt), and with the newest that pip finds.
# From PyPI, torch brings 3 to 5 GB of CUDA; PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu gives its small
# builds for CPUs.
LOWEST := .venv-lowest/bin/python
test-lowest:
	test -x $(LOWEST) || python3.11 -m venv .venv-lowest
	$(LOWEST) $(INSTALL) $(GROUPS)
	$(LOWEST) $(INSTALL) -c lowest.txt -e . --group test
	$(LOWEST) -m pytest -n 2 --dist worksteal $(FAST)

NEWEST := .venv-newest/bin/python
NEWEST_PYTHON ?= python3.13
test-newest:
	test -x $(NEWEST) || $(NEWEST_PYTHON) -m venv .venv-newest
	$(NEWEST) $(INSTALL) $(GROUPS)
	$(NEWEST) $(INSTALL) --upgrade --upgrade-strategy eager -e . --group test
	$(NEWEST) -m pytest -n 2 --dist worksteal $(FAST)

# Tests of the extras that `make env` leaves out (loggers, ONNX, Lightning: 500 MB), with the versions in extras.txt.
EXTRAS := .venv-extras/bin/python
test-extras:
	test -x $(EXTRAS) || $(PYTHON) -m venv .venv-extras
	$(EXTRAS) $(INSTALL) $(GROUPS)
	$(EXTRAS) $(INSTALL) -c extras.txt -e '.[lightning,mlflow,onnx,tensorboard,trackio,wandb]' --group test
	$(EXTRAS) -m pytest -rs tests/loggers tests/formats tests/integrations src/sihg/loggers src/sihg/formats src/sihg/integrations

# The wheel in a new environment outside the repository: snippets, demo, report, examples, start times.
wheel-test: env
	$(BIN)/python -m tests.installed

# The site in build/site, by mkdocs and then by zensical: both read mkdocs.yml, and a broken link or anchor fails.
# Without a network: open build/site/index.html. build/docs has the pages before, with the notebooks executed.
docs: $(DOCS)
	$(BIN)/python -m docs_site
	SITE_DIR=build/site-zensical $(BIN)/python -m zensical build --strict --clean
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

docs-serve: $(DOCS)
	$(BIN)/python -m docs_site --no-notebooks
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs serve

$(DOCS): $(ENV)
	$(BIN)/python $(INSTALL) -c constraints.txt --group docs
	touch $@

lint: env
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy src tests benchmarks docs_site

format: env
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: peers
	$(BIN)/python -m benchmarks --out runs/bench

clean:
	rm -rf .venv .venv-extras .venv-lowest .venv-newest .coverage .hypothesis .mypy_cache .pytest_cache .ruff_cache build dist
