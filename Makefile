# The verbs of this project; `make help` lists them. CI and home call the same ones.
PYTHON ?= python3
TESTS ?=
NAMES ?=
# 0: the site shows the source of diagrams instead of drawings.
DIAGRAMS ?= 1
# Tests wait about half of their time, so that two cores run three files of tests, or packages that share ranks, at a time.
JOBS ?= $(shell [ "$$(nproc 2>/dev/null || echo 1)" -ge 2 ] && echo 3 || echo 1)
# When set, in seconds since 1970: tests that have not begun by then are skipped, with a message.
BEGIN_UNTIL ?=
# Of the tables of faults and security demands, for `make mutations`: rotating is another row each day.
ROWS ?=
# What the sanitizers watch: all C++ tests, or those of some folders of native/tests.
SANITIZERS ?= address thread
AREAS ?=
SECONDS ?= 60
# What `make matrix` tries: names of cells, rotating (another one each day), or all.
CELL ?=
# `make chaos` makes and prints a fresh seed unless SEED is set. RUN=n repeats one run of a seed.
SEED ?=
RUN ?=
TIMEOUT ?= 600
# `make cluster`: containers, processes, or auto (containers where an engine answers); ports such as master=7078,jupyter=9999.
CLUSTER ?= auto
CLUSTER_PORTS ?=

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
LIBRARY := libspark_estimator_engine.so
# Where pyproject.toml tells the build back-end to work.
TREE := build/release
# PyTorch goes in first and alone: which build of it (CPU, CUDA) the index offers must not depend on the packages beside it.
TORCH := $(shell sed -n 's/^\(torch==[^ ;]*\).*/\1/p' constraints.txt)
# Fuzzing is clang's.
CLANG ?= $(firstword $(foreach name,clang++ $(addprefix clang++-,22 21 20 19 18 17 16 15 14),$(shell command -v $(name))))
NATIVE := $(shell find native -type f -not -name '.*')
PACKAGE := $(shell find spark_estimator -type f -not -path '*/__pycache__/*' -not -name '*.so')

.PHONY: help demo cluster cluster-demo cluster-down test test-all test-slow test-faults mutations matrix chaos test-petastorm notebooks lint docs docs-links .graphviz build wheel wheels release test-native test-native-aarch64 test-native-sanitized test-containers test-kubernetes test-yarn fuzz coverage format clean
.DELETE_ON_ERROR:

help:
	@echo 'make demo                   train on two ranks over a local Spark, from nothing (sets up $(VENV) first)'
	@echo 'make cluster                a Spark master, two workers, Spark Connect and Jupyter, in containers or as processes (docker/README.md)'
	@echo 'make cluster-demo           a function on its two workers, and a fit over Spark Connect'
	@echo 'make cluster-down           stop it'
	@echo 'make test                   native tests, then the Python tests that are not marked slow; TESTS="tests/launch -k name" selects'
	@echo 'make test-all               all tests'
	@echo 'make test-slow              the tests that make test leaves out; PART=2/24 runs the files of one of 24 parts'
	@echo 'make test-faults            the tests that the tables of faults and of security demands name'
	@echo 'make mutations              breaks the code on purpose: the tests of these tables must fail; ROWS="1 S14" selects, ROWS=rotating one a day'
	@echo 'make lint                   ruff, mypy, clang-format: what CI refuses'
	@echo 'make notebooks              runs the notebooks, and stores their outputs in them; NAMES="torch keras" selects'
	@echo 'make docs                   the documentation site in build/docs; DIAGRAMS=0 where Graphviz is not installed'
	@echo 'make docs-links             whether the site'"'"'s links to other sites work (needs the internet)'
	@echo 'make build                  environment, wheel, and the library beside the checked-out package'
	@echo 'make wheel                  dist/*.whl only'
	@echo 'make wheels                 the wheels to publish (release/README.md); TWICE=1 compares two builds'
	@echo 'make release                all of a release but the upload, tried on each Python here (release/README.md); DRAFT=1 needs no tag'
	@echo 'make test-native            the C++ tests'
	@echo 'make test-native-aarch64    the C++ tests on an emulated aarch64 (qemu-user)'
	@echo 'make test-native-sanitized  the C++ tests under ASan+UBSan and under TSan; AREAS="engine gpu" selects folders'
	@echo 'make test-containers        the images and the cluster in real containers (docker.io, debootstrap, and docker-compose of Debian 13)'
	@echo 'make test-kubernetes        Spark on a stand-in for Kubernetes, with simulated hosts'
	@echo 'make test-yarn              on YARN and HDFS (jars of Hadoop: tests/hadoop_daemons.py)'
	@echo 'make test-petastorm         what needs petastorm itself, in an environment of its own (Python 3.10 or 3.11)'
	@echo 'make matrix                 lists combinations of versions of Spark, Python, PyTorch ...; CELL=spark-3.5 tries one, CELL=all all of them'
	@echo 'make fuzz                   every parser of bytes from a peer against strange bytes, SECONDS=$(SECONDS) each (clang)'
	@echo 'make chaos                  random jobs with random faults for SECONDS=$(SECONDS), each judged; SEED=... RUN=... repeats one'
	@echo 'make coverage               which lines of the engine the C++ tests do not reach'
	@echo 'make format                 rewrite the sources as lint wants them'
	@echo 'make clean                  remove what was built ($(VENV) stays)'
	@echo 'Variables: PYTHON=$(PYTHON) makes the environment; TESTS= goes to pytest; JOBS=1 runs one file of tests at a time'

demo: $(VENV)/.demo
	@$(BIN)/python -m spark_estimator demo

# Containers have their own packages; processes use those of $(VENV).
cluster:
	@variant=$$($(PYTHON) docker/cluster.py variant --variant '$(CLUSTER)') && python='$(PYTHON)' \
	  && if [ "$$variant" = processes ]; then $(MAKE) --no-print-directory $(VENV)/.cluster && python=$(BIN)/python; fi \
	  && $$python docker/cluster.py up --variant '$(CLUSTER)' --ports '$(CLUSTER_PORTS)'

cluster-demo:
	@$$(test -x $(BIN)/python && echo $(BIN)/python || echo '$(PYTHON)') docker/cluster.py demo

cluster-down:
	@$(PYTHON) docker/cluster.py down

# A selection runs all that it names, and nothing else.
test: $(if $(TESTS),build,test-native)
	$(call pytest,$(if $(TESTS),$(TESTS),-m "not slow"))

test-all: test-native
	$(call pytest,$(TESTS))

test-slow: build
	$(call pytest,-m slow,$(if $(PART),--part $(PART)))

# The tests that the tables of faults and of security demands name, and all native ones.
test-faults: test-native
	$(call pytest,$(shell grep -ohE '\btests/[a-z0-9_/]+\.py::\w+' docs/explanation/fault-matrix.md docs/explanation/security.md | sort -u))

mutations: build
	$(BIN)/python -m tests.mutations $(ROWS)

chaos: build
	$(BIN)/python -m chaos --seconds $(SECONDS) $(if $(SEED),--seed '$(SEED)') $(if $(RUN),--run $(RUN))

LIMITED = $(if $(BEGIN_UNTIL),--begin-until $(BEGIN_UNTIL))
# Tests that fail beside others run once more, alone: what fails there too has failed. A second argument is for the first
# run only: a part of the tests that failed is not what to repeat.
ifeq ($(JOBS),1)
pytest = $(BIN)/python -m pytest $(LIMITED) $(2) $(1)
else
pytest = $(BIN)/python -m pytest --numprocesses $(JOBS) --dist loadfile $(LIMITED) $(2) $(1) || $(BIN)/python -m pytest --last-failed --last-failed-no-failures none $(1)
endif

notebooks: build
	$(BIN)/python tests/notebooks/execute.py $(NAMES)

lint: $(VENV)/.dependencies
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/clang-format --dry-run -Werror $(filter %.h %.cc,$(NATIVE) $(PACKAGE))

# Warnings are errors: a name, link or heading that leads nowhere fails the build.
SPHINX = DIAGRAMS=$(DIAGRAMS) $(BIN)/python -m sphinx --fail-on-warning --keep-going --quiet -d build/docs-cache

docs: .graphviz $(VENV)/.docs
	$(SPHINX) -b html docs build/docs
	@echo 'The site is in build/docs: open build/docs/index.html'

docs-links: $(VENV)/.docs
	$(SPHINX) -b linkcheck docs build/docs-links

format: $(VENV)/.dependencies
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/clang-format -i $(filter %.h %.cc,$(NATIVE) $(PACKAGE))

build: $(VENV)/.installed

wheel: build/.wheel
	@ls dist/*.whl

# To publish. PROCESSORS="aarch64" selects; TWICE=1 compares with a second build, byte by byte.
wheels: build/release-tools/.ready
	build/release-tools/bin/python release/wheels.py $(PROCESSORS) $(if $(TWICE),--twice)
	build/release-tools/bin/twine check --strict build/wheels/*.whl
	build/release-tools/bin/check-wheel-contents build/wheels/*.whl

# All of a release but the upload, in build/release: release/README.md. DRAFT=1: no tag and no date yet. KEY=... signs.
release: wheels docs
	build/release-tools/bin/python release/release.py $(if $(DRAFT),--draft) $(if $(KEY),--key '$(KEY)') $(RELEASE)

# The C++ tests as that processor runs them (Debian, Ubuntu: apt-get install qemu-user libc6-arm64-cross). qemu's memory
# grows with each page that a program maps, and segments are mapped as large as files may be: 256 MiB here.
test-native-aarch64: build/release-tools/.ready
	@command -v qemu-aarch64 >/dev/null && test -d /usr/aarch64-linux-gnu/lib \
	  || { echo 'make: qemu-aarch64 or the C library of aarch64 was not found; install them (Debian, Ubuntu: apt-get install qemu-user libc6-arm64-cross)'; exit 1; }
	CXX="$(CURDIR)/build/release-tools/bin/python -m ziglang c++ -target aarch64-linux-gnu.2.28" build/release-tools/bin/cmake -S native \
	  -B build/aarch64 -G Ninja -DCMAKE_MAKE_PROGRAM=$(CURDIR)/build/release-tools/bin/ninja -DCMAKE_SYSTEM_NAME=Linux \
	  -DCMAKE_SYSTEM_PROCESSOR=aarch64 '-DCMAKE_CROSSCOMPILING_EMULATOR=qemu-aarch64;-L;/usr/aarch64-linux-gnu' \
	  -DSPARK_ESTIMATOR_BUILD_TESTS=ON
	build/release-tools/bin/cmake --build build/aarch64
	ulimit -f 524288; build/release-tools/bin/ctest --test-dir build/aarch64 --output-on-failure --timeout 900

# Nightly: the one combination of versions in which petastorm reads. The engine comes from `make build`.
test-containers: export SPARK_ESTIMATOR_TEST_IMAGE_BUILD = 1
test-containers: build
	$(call pytest,tests/docker/test_containers.py tests/docker/test_image_build.py)

test-kubernetes: build
	$(call pytest,tests/docker/test_kubernetes.py)

# The tests with Hadoop's own daemons; their jars: tests/hadoop_daemons.py says which, and where it looks.
test-yarn: build
	$(call pytest,$(shell grep -rlE 'hadoop_daemons import' tests --include='test_*.py'))

test-petastorm: build build/petastorm/.ready
	build/petastorm/bin/python -m pytest tests/extensions/petastorm

# Without a cell it needs no build: it only lists them. Environments are in build/matrix, up to 7 GB each.
matrix: $(if $(CELL),build)
	$(if $(CELL),$(BIN)/python,$(PYTHON)) -m matrix $(foreach cell,$(CELL),--cell $(cell)) $(if $(CELL),--store)

test-native: build
	$(BIN)/ctest --test-dir $(TREE) --parallel $(JOBS) --output-on-failure --timeout 300

empty :=
LABELS := $(subst $(empty) $(empty),|,$(strip $(AREAS)))
# -O1 with line numbers compiles twice as fast as -O2 with all of -g.
test-native-sanitized: $(VENV)/.tools
	@set -e; failed=0; for sanitizer in $(SANITIZERS); do \
	  $(BIN)/cmake -S native -B build/$$sanitizer -G Ninja -DCMAKE_MAKE_PROGRAM="$(abspath $(BIN))/ninja" \
	    -DCMAKE_BUILD_TYPE=RelWithDebInfo '-DCMAKE_CXX_FLAGS_RELWITHDEBINFO=-O1 -g1 -DNDEBUG' \
	    -DSPARK_ESTIMATOR_BUILD_TESTS=ON -DSPARK_ESTIMATOR_SANITIZER=$$sanitizer; \
	  selected="$(if $(LABELS),-L ^($(LABELS))$$)"; \
	  targets="$(if $(LABELS),$$($(BIN)/ctest --test-dir build/$$sanitizer -N $$selected | sed -n 's/.*Test *#[0-9]*: \([a-z0-9_]*_test\).*/\1/p'))"; \
	  $(BIN)/cmake --build build/$$sanitizer $${targets:+--target $$targets}; \
	  $(BIN)/ctest --test-dir build/$$sanitizer $$selected --output-on-failure --timeout $(TIMEOUT) || failed=1; \
	done; exit $$failed

# What was found to be interesting is kept in build/fuzz/corpus and is where the next run starts.
fuzz: $(VENV)/.tools
	@test -n "$(CLANG)" || { echo 'make: fuzzing needs clang with libFuzzer (Debian, Ubuntu: apt-get install clang libclang-rt-dev), or name it: make CLANG=...'; exit 1; }
	$(BIN)/cmake -S native -B build/fuzz -G Ninja -DCMAKE_MAKE_PROGRAM="$(abspath $(BIN))/ninja" \
	  -DCMAKE_BUILD_TYPE=RelWithDebInfo -DCMAKE_CXX_COMPILER="$(CLANG)" -DSPARK_ESTIMATOR_BUILD_FUZZERS=ON
	$(BIN)/cmake --build build/fuzz --target fuzzers
	@rm -rf build/fuzz/seeds && build/fuzz/fuzz/seeds build/fuzz/seeds
	@set -e; for target in build/fuzz/fuzz/*_fuzz; do \
	  name=$$(basename "$$target"); mkdir -p "build/fuzz/corpus/$$name"; echo "== $$name, $(SECONDS) s"; \
	  "$$target" -max_total_time=$(SECONDS) -timeout=20 -rss_limit_mb=2048 -verbosity=0 -print_final_stats=1 \
	    -artifact_prefix="build/fuzz/$$name-" "build/fuzz/corpus/$$name" "build/fuzz/seeds/$$name"; \
	done

coverage: $(VENV)/.tools
	$(PIP) install --quiet --constraint constraints.txt gcovr
	$(BIN)/cmake -S native -B build/coverage -G Ninja -DCMAKE_MAKE_PROGRAM="$(abspath $(BIN))/ninja" \
	  -DCMAKE_BUILD_TYPE=Release -DSPARK_ESTIMATOR_BUILD_TESTS=ON -DSPARK_ESTIMATOR_COVERAGE=ON
	$(BIN)/cmake --build build/coverage
	@find build/coverage -name '*.gcda' -delete
	$(BIN)/ctest --test-dir build/coverage --output-on-failure --timeout 600
	$(BIN)/gcovr --root native --object-directory build/coverage --gcov-ignore-parse-errors=suspicious_hits.warn_once_per_file \
	  --gcov-ignore-parse-errors=negative_hits.warn_once_per_file \
	  --filter native/algorithms/ --filter native/engine/ --filter native/transport/ --exclude-throw-branches \
	  --fail-under-line 90 --print-summary

clean:
	rm -rf build dist spark_estimator/$(LIBRARY) .mypy_cache .ruff_cache .pytest_cache

# --- the steps behind the verbs; each leaves a stamp, so that a second run starts at once ---

$(VENV)/.tools: constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null \
	  || { echo "make: Python 3.10 or later is needed, but $(PYTHON) is $$($(PYTHON) -V 2>&1); give another one: make PYTHON=python3.12"; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null \
	  || { echo "make: $(PYTHON) cannot make virtual environments; install its venv module (Debian, Ubuntu: apt-get install python3-venv)"; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) install --quiet --constraint constraints.txt $(TORCH)
	$(PIP) install --quiet --constraint constraints.txt scikit-build-core cmake ninja
	@touch $@

build/.wheel: $(VENV)/.tools pyproject.toml README.md LICENSE $(NATIVE) $(PACKAGE)
	@command -v "$${CXX:-c++}" >/dev/null \
	  || { echo "make: no C++ compiler ($${CXX:-c++}) was found; install one that knows C++20 (Debian, Ubuntu: apt-get install g++), or name it: make CXX=..."; exit 1; }
	@rm -rf dist
	$(PIP) wheel --quiet --no-build-isolation --no-deps --wheel-dir dist \
	  --config-settings=cmake.define.SPARK_ESTIMATOR_BUILD_TESTS=ON .
	@touch $@

build/release-tools/.ready: release/requirements.txt
	$(PYTHON) -m venv build/release-tools
	build/release-tools/bin/python -m pip --disable-pip-version-check install --quiet --requirement release/requirements.txt
	@touch $@

$(VENV)/.dependencies: pyproject.toml constraints.txt | build/.wheel
	$(PIP) install --quiet --constraint constraints.txt "$$(ls ./dist/*.whl)[dev]"
	@touch $@

.graphviz:
	@test "$(DIAGRAMS)" = 0 || command -v dot >/dev/null \
	  || { echo 'make: the diagrams need Graphviz, and its program dot was not found; install it (Debian, Ubuntu: apt-get install graphviz), or build without drawings: make docs DIAGRAMS=0'; exit 1; }

$(VENV)/.docs: pyproject.toml constraints.txt | $(VENV)/.installed
	@$(BIN)/python -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "make: the documentation needs Python 3.11 or later, but $(VENV) has $$($(BIN)/python -V 2>&1)"; exit 1; }
	$(PIP) install --quiet --constraint constraints.txt "$$(ls ./dist/*.whl)[docs]"
	@touch $@

# PyTorch wants newer setuptools than petastorm, so it goes in without what it depends on.
build/petastorm/.ready: tests/extensions/petastorm/requirements.txt constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 10) <= sys.version_info < (3, 12))' \
	  || { echo "make: petastorm needs Python 3.10 or 3.11, but $(PYTHON) is $$($(PYTHON) -V 2>&1); give another one: make test-petastorm PYTHON=python3.11"; exit 1; }
	@rm -rf build/petastorm
	$(PYTHON) -m venv build/petastorm
	build/petastorm/bin/python -m pip install --quiet --no-deps $(TORCH)
	build/petastorm/bin/python -m pip install --quiet --requirement tests/extensions/petastorm/requirements.txt
	@touch $@

# Python that runs in the checkout finds the checked-out package before the installed one, so the library goes there as
# well: under another name first, because a process may have the old one mapped.
define put-in-place
	$(PIP) install --quiet --no-deps --force-reinstall dist/*.whl
	@$(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))' | { read -r site; \
	  cp "$$site/spark_estimator/$(LIBRARY)" build/$(LIBRARY); mv -f build/$(LIBRARY) spark_estimator/$(LIBRARY); }
	@touch $@
endef

$(VENV)/.installed: build/.wheel $(VENV)/.dependencies
	$(put-in-place)

# The demo needs less than the tests do: no TensorFlow, no JAX.
$(VENV)/.demo: build/.wheel
	$(PIP) install --quiet --constraint constraints.txt "$$(ls ./dist/*.whl)[demo,java]"
	$(put-in-place)

$(VENV)/.cluster: build/.wheel
	$(PIP) install --quiet --constraint constraints.txt "$$(ls ./dist/*.whl)[cluster,java]"
	$(put-in-place)
