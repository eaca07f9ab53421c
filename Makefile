# The commands of the project. Each makes what it needs: a clean clone and Python 3.11 are enough.
#   PYTHON=...   interpreter to build the environments with     JOBS=2   parallel test processes
#   ARGS=...     more arguments for pytest, the demo or the benchmarks
#   NEWEST=...   interpreter of `make test-newest`, instead of the newest one that is found; several are allowed

PYTHON ?= python3
JOBS ?= 2
ARGS ?=
ROWS ?=

ENVIRONMENT := scripts/make_environment.sh
REQUIREMENTS := pyproject.toml constraints.txt
PYTEST := .venv/bin/python -m pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder
NEWEST_PYTHONS := 3.14 3.13
NEWEST ?= $(shell scripts/find_python.sh $(NEWEST_PYTHONS))
NEWEST_TESTS := tests/conformance/zarr tests/conformance/official tests/property/test_shards.py

# What tests need once, made while the first of them run: a minute each for the Azure endpoint and
# for a browser where the system has none, half a minute for the archive of Spark's classes.
define FETCH_TEST_PARTS
@.venv/bin/python -m tests.endpoints.azurite &
@.venv/bin/python -m tests.chromium &
@.venv/bin/python -m tests.class_archive 2>/dev/null &
endef

.DEFAULT_GOAL := help
.PHONY: help demo test test-deep mutants test-newest check format bench docs pin api requirements budgets map cli decisions plots test-wheel clean

help:  ## list these targets
	@echo "icefloe: transactional, versioned Zarr arrays. Targets:"
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: .venv/.ready  ## see it work: files, Spark, SQL and pictures, under build/demo
	@.venv/bin/python examples/demo.py $(ARGS)

test: .venv/.ready  ## run all tests, then the zarr suites on the newest Python and zarr if there
ifeq ($(strip $(ARGS)),)
	$(FETCH_TEST_PARTS)
endif
	$(PYTEST) $(ARGS)
ifeq ($(strip $(ARGS)),)
	@$(MAKE) --no-print-directory test-newest
endif

test-deep: .venv/.ready  ## the tests with large budgets, and all mutants (up to two hours on two cores)
ifeq ($(strip $(ARGS)),)
	$(FETCH_TEST_PARTS)
endif
	ICEFLOE_TEST_PROFILE=deep ICEFLOE_TEST_COUNTS=build/deep-tests.json \
	    $(PYTEST) -o timeout=7200 -o faulthandler_timeout=7000 $(ARGS)
ifeq ($(strip $(ARGS)),)
	@$(MAKE) --no-print-directory mutants
	.venv/bin/python scripts/write_reliability.py build/deep-tests.json build/mutants.json
endif

mutants: .venv/.ready  ## break the source once for each requirement: its tests must fail (ROWS=R0-32: some)
	.venv/bin/python -m scripts.run_mutants --jobs $(JOBS) --summary build/mutants.json $(ROWS)

test-newest:  ## run the zarr suites on the newest Python (3.14 or 3.13) with the newest zarr, if it is there
	@if [ -z "$(strip $(NEWEST))" ]; then \
	    echo "SKIPPED zarr suites on the newest zarr: no Python of $(NEWEST_PYTHONS) on this machine."; \
	fi
	@set -e; for python in $(NEWEST); do \
	    version=$$("$$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])'); \
	    $(MAKE) --no-print-directory ".venv-newest-$$version/.ready" NEWEST="$$python"; \
	    echo "The zarr suites on Python $$version:"; \
	    ".venv-newest-$$version/bin/python" -m pytest -n $(JOBS) -p no:cacheprovider $(NEWEST_TESTS); \
	done

check: .venv/.ready  ## formatting, lint, types, import contracts, a test for each requirement
	.venv/bin/ruff format --check .
	.venv/bin/ruff check .
	.venv/bin/mypy
	.venv/bin/lint-imports --no-logo
	.venv/bin/python scripts/list_requirements.py --check

format: .venv/.ready  ## format the code and apply the safe lint fixes
	.venv/bin/ruff format .
	.venv/bin/ruff check --fix .

bench: .venv-bench/.ready  ## compare with the official package and others (ARGS=--quick: small; --keep: for the docs)
	@if [ -n "$(strip $(NEWEST))" ]; then \
	    $(MAKE) --no-print-directory .venv-bench-newest/.ready NEWEST="$(firstword $(NEWEST))"; \
	fi
	.venv-bench/bin/python -m benchmarks.run $(ARGS)
	@.venv-bench/bin/python scripts/write_performance.py

docs: .venv-docs/.ready  ## build the documentation site into build/site, and check its links and its search
	@.venv-docs/bin/zensical build --strict --clean --config-file mkdocs.yml
	@.venv-docs/bin/python scripts/check_links.py build/site
	@.venv-docs/bin/python scripts/check_search.py build/site
	@echo "Open build/site/index.html"

pin: .venv/.ready  ## write constraints.txt again from pyproject.toml (ARGS=--upgrade: newest versions)
	.venv/bin/python scripts/pin_versions.py $(ARGS) \
	    $$(for v in 3.11 3.12 3.13 3.14; do scripts/find_python.sh $$v; done)

api: .venv/.ready  ## renew the stubs, schemas, API pages and listing of public names after a deliberate change
	@mkdir -p build
	.venv/bin/python scripts/write_stubs.py
	.venv/bin/python scripts/write_schema.py
	.venv/bin/python scripts/write_api_pages.py
	.venv/bin/python scripts/list_api.py icefloe > build/public_api.json
	mv build/public_api.json tests/architecture/public_api.json

requirements: .venv/.ready  ## renew the page that says which test shows which requirement
	.venv/bin/python scripts/list_requirements.py

budgets: .venv/.ready  ## count the requests of all operations again, after a deliberate change
	.venv/bin/python -m scripts.write_budgets

cli: .venv/.ready  ## renew the reference page and the pictures of the command line
	.venv/bin/python scripts/write_cli_reference.py
	.venv/bin/python scripts/draw_cli_pictures.py

decisions: .venv/.ready  ## number the decision records without gaps, and list them in their index and in the navigation
	.venv/bin/python scripts/list_decisions.py

plots: .venv/.ready  ## renew the tables and plots of the performance page from the kept measurements
	.venv/bin/python scripts/write_performance.py

test-wheel:  ## build the wheel, install it into an empty environment, and use it there
	scripts/test_wheel.sh $(PYTHON)

map: .venv/.ready  ## draw the packages of the code, their sizes and imports, for ARCHITECTURE.md
	.venv/bin/python scripts/draw_map.py

clean:  ## remove everything that these targets made
	rm -rf .venv .venv-newest-* .venv-bench .venv-bench-newest .venv-docs build .hypothesis
	rm -rf .pytest_cache .mypy_cache .ruff_cache .import_linter_cache
	find src tests benchmarks examples scripts -name __pycache__ -type d -prune -exec rm -rf {} +

.venv/.ready: $(REQUIREMENTS)
	@$(ENVIRONMENT) .venv $(PYTHON) --editable ".[xarray,spark,connect,java,ingest-all,cli,ui,aws,gcp,azure]" --group dev

.venv-newest-%/.ready: $(REQUIREMENTS)
	@$(ENVIRONMENT) .venv-newest-$* $(NEWEST) --editable ".[xarray,cli]" --group test

.venv-bench/.ready: $(REQUIREMENTS)
	@$(ENVIRONMENT) .venv-bench $(PYTHON) --editable ".[xarray,spark,java,ingest-all]" --group bench

.venv-bench-newest/.ready: $(REQUIREMENTS)
	@$(ENVIRONMENT) .venv-bench-newest $(NEWEST) --group bench

.venv-docs/.ready: $(REQUIREMENTS)
	@$(ENVIRONMENT) .venv-docs $(PYTHON) --group docs
