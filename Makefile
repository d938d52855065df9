# Two commands do everything on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
DEMO := demo
DIR ?= oracles/data
PUSH ?=

.PHONY: help install demo viewer test test-all test-peers test-long test-browser test-clean test-oldest lint oracles bench bench-gpu campaign docs docs-publish docs-tables coverage clean

help:
	@echo "make demo       from synthetic slides to heat maps in a few minutes: both methods, three seeds, one page to open"
	@echo "make test       ruff, mypy, import-linter, pytest (TESTS=files or folders: only these)"
	@echo "make test-all   make test, and what takes long: Ray clusters, the wheel, pages of the documentation, all verbs"
	@echo "make test-peers other people's software writes for us and reads ours; what installs, in .venv-peers (docs/coming_from.md)"
	@echo "make viewer     the page of \`asmil view\`, built with npm into src/asmil/viewer/static"
	@echo "make test-browser  the viewer in a real browser: installs npm packages, playwright and, as root, chromium"
	@echo "make test-long  every table of the paper at smoke size, about half an hour"
	@echo "make test-clean make test in a fresh clone as another user, with empty HOME and TMPDIR, LC_ALL=C and few open files"
	@echo "make test-oldest the tests with the oldest dependencies that pyproject.toml declares, in .venv-oldest"
	@echo "make oracles    every method, metric and test compared with official numbers (DIR=another folder of oracle files)"
	@echo "make bench      speed: ASMIL beside its plain form, every method, the anchor, and the way from slides to features"
	@echo "make bench-gpu  a GPU: fused ASMIL steps, CUDA graphs of other methods, batches, asmil train from start to report"
	@echo "make campaign   damaged files, killed commands, full disks: nothing may be lost, hang or end in a traceback"
	@echo "make docs       the documentation site, in the folder site"
	@echo "make docs-tables rewrite the tables of settings and options in docs/ from the code, and of evidence in README.md from docs/results"
	@echo "make docs-publish the site of one version on the branch gh-pages (VERSION=dev, or VERSION=1.2 ALIAS=latest; PUSH=--push)"
	@echo "make coverage   make test without the linters, and which lines it runs"
	@echo "make clean      remove the environment, the demo and all caches"

install: $(VENV)/installed

$(VENV)/installed: pyproject.toml src/asmil/version.py
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	touch $(VENV)/runtime $@

# what a user installs; the demo needs no more
$(VENV)/runtime: pyproject.toml src/asmil/version.py
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --editable .
	touch $@

# how these settings were chosen: docs/demo.md
DEMO_TRAIN := $(BIN)/asmil train $(DEMO)/cohort/cohort.csv --seeds 3 --set model.inner=128 --set training.lr=3e-4 --set training.epochs=30
DEMO_RUNS := $(DEMO)/runs/asmil $(DEMO)/runs/abmil

demo: $(VENV)/runtime
	$(BIN)/asmil synthetic-slides $(DEMO)/cohort --slides 60 --seed 11 --micro 0.75 --side-mm-min 1.4 --side-mm-max 2
	$(BIN)/asmil extract $(DEMO)/cohort/slides --out $(DEMO)/cohort/features --tile-um 128 --tile-px 128 --no-qc
	$(DEMO_TRAIN) --method asmil --preset no_anchor --out $(DEMO)/runs/asmil
	$(DEMO_TRAIN) --method abmil --out $(DEMO)/runs/abmil
	$(BIN)/asmil compare $(DEMO_RUNS) --out $(DEMO)/comparison
	$(BIN)/asmil localize $(DEMO)/runs/asmil --annotations $(DEMO)/cohort/annotations
	$(BIN)/asmil localize $(DEMO)/runs/abmil --annotations $(DEMO)/cohort/annotations
	$(BIN)/asmil stability $(DEMO_RUNS) --out $(DEMO)/stability
	$(BIN)/asmil heatmap $(DEMO_RUNS) --out $(DEMO)/heatmaps --annotations $(DEMO)/cohort/annotations
	$(BIN)/asmil index $(DEMO) --title "asmil demo"

test: lint
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 -m 'not heavy and not long and not browser and not peers' $(TESTS)

test-all: lint
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 -m 'not long and not browser' $(TESTS)

# lazyslide and what reads its models want torchvision and timm, which need not match this torch: they come without
PEERS := .venv-peers
$(PEERS)/installed: pyproject.toml src/asmil/version.py
	test -x $(PEERS)/bin/python || $(PYTHON) -m venv $(PEERS)
	$(PEERS)/bin/python -m pip install --quiet --editable . 'pytest>=8' 'hypothesis>=6.100'
	$(PEERS)/bin/python -m pip install --quiet torchmil scikit-survival wsidicomizer wsidata
	$(PEERS)/bin/python -m pip install --quiet --no-deps lazyslide lazyslide-models
	$(PEERS)/bin/python -m pip install --quiet legendkit matplotlib-scalebar numba scikit-image seaborn huggingface-hub \
	  beartype jaxtyping lightning torchmetrics einops geopandas requests tqdm
	touch $@

# CLAM, TRIDENT and STAMP are not on PyPI: ASMIL_PEERS=FOLDER with clones of them, else their tests are skipped
test-peers: $(PEERS)/installed
	OMP_NUM_THREADS=1 $(PEERS)/bin/python -m pytest -rs -m peers tests/peers

test-long: install
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 -m long $(TESTS)

viewer: src/asmil/viewer/static/index.html

src/asmil/viewer/static/index.html: frontend/package-lock.json frontend/build.mjs $(wildcard frontend/src/*)
	@command -v npm >/dev/null || { echo "npm is missing: install Node.js 20 or newer, then run make viewer again"; exit 1; }
	cd frontend && npm ci --no-audit --no-fund && npm run check && npm run build

test-browser: install viewer
	$(BIN)/python -m pip install --quiet 'playwright>=1.45'
	@command -v chromium >/dev/null || command -v chromium-browser >/dev/null || command -v google-chrome >/dev/null \
	  || { test "$$(id -u)" = 0 && apt-get update -qq && apt-get install -y -qq chromium; } \
	  || { echo "chromium is missing: install it (Debian: apt-get install chromium), then run make test-browser again"; exit 1; }
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m browser tests/browser

test-clean:
	PYTHON=$(PYTHON) tests/clean_clone.sh $(TESTS)

# without the linters, whose findings depend on the versions, and without what dev adds for them
OLDEST := .venv-oldest
$(OLDEST)/installed: pyproject.toml .github/oldest_dependencies.py
	test -x $(OLDEST)/bin/python || $(PYTHON) -m venv $(OLDEST)
	$(OLDEST)/bin/python .github/oldest_dependencies.py > $(OLDEST)/constraints.txt
	$(OLDEST)/bin/python -m pip install --quiet --prefer-binary --constraint $(OLDEST)/constraints.txt \
	  --editable '.[export,hub,mlflow,ray,sweep,tracking,viewer,wandb,word,zarr]' \
	  'pytest>=8' 'pytest-xdist>=3.5' 'hypothesis>=6.100' 'httpx>=0.27' 'anndata>=0.10' 'hatchling>=1.24'
	touch $@

test-oldest: $(OLDEST)/installed
	OMP_NUM_THREADS=1 $(OLDEST)/bin/python -m pytest -n 2 -m 'not heavy and not long and not browser and not peers' $(TESTS)

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

oracles: install
	OMP_NUM_THREADS=1 $(BIN)/python -m oracles $(DIR)

bench: install
	$(BIN)/python benchmarks/asmil_speed.py
	$(BIN)/python benchmarks/method_speed.py
	$(BIN)/python benchmarks/anchor_cost.py
	$(BIN)/python benchmarks/reading_speed.py
	$(BIN)/python benchmarks/tissue_speed.py
	$(BIN)/python benchmarks/encoding_speed.py
	$(BIN)/python benchmarks/pack_speed.py
	$(BIN)/python benchmarks/growth.py
	$(BIN)/python benchmarks/viewer_speed.py

bench-gpu: install
	$(BIN)/python benchmarks/gpu_speed.py
	$(BIN)/python benchmarks/gpu_methods.py

FILES ?= 5000
KILLS ?= 300
FULL_DISKS ?= 100
SEED ?= 0

# all three run, and any finding fails
campaign: export OMP_NUM_THREADS := 1
campaign: install
	status=0; \
	$(BIN)/python -m tests.campaigns.fuzz --files $(FILES) --seed $(SEED) || status=1; \
	$(BIN)/python -m tests.campaigns.kill --kills $(KILLS) --seed $(SEED) || status=1; \
	$(BIN)/python -m tests.campaigns.full_disk --trials $(FULL_DISKS) --seed $(SEED) || status=1; \
	exit $$status

docs: install
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

# the folder of a version is replaced, all others stay; until there is a release the address of the site leads to dev
docs-publish: export NO_MKDOCS_2_WARNING := 1
docs-publish: export PATH := $(CURDIR)/$(BIN):$(PATH)
docs-publish: install
	@test -n "$(VERSION)" || { echo "which version? make docs-publish VERSION=dev"; exit 1; }
	mike deploy $(PUSH) --update-aliases $(VERSION) $(ALIAS)
	mike set-default $(PUSH) $$(mike list latest >/dev/null 2>&1 && echo latest || echo $(VERSION))

docs-tables: install
	$(BIN)/python docs/tables.py
	$(BIN)/python docs/evidence.py

coverage: install
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 -m 'not heavy and not long and not browser and not peers' --cov=asmil --cov-report=xml --cov-report=term:skip-covered $(TESTS)

clean:
	rm -rf $(VENV) $(PEERS) $(OLDEST) $(DEMO) dist build frontend/node_modules src/asmil/viewer/static .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache site coverage.xml .coverage
