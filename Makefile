# make setup | test | test-slow | test-alone | test-extras | fuzz | check | demo | docs | parity | mutate | generate
PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin
STAMP = $(VENV)/.ready
EXTRAS ?= dev
JOBS ?= 2
# called as a module: what pip installs need not be on the PATH
UV = $(PYTHON) -m uv
.PHONY: setup demo docs test test-slow test-alone test-extras fuzz check parity mutate generate clean

setup: $(STAMP)

# uv installs in seconds; plain pip where it is not available
$(STAMP): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or newer is needed: make PYTHON=python3.12"; exit 1; }
	@echo "setting up $(VENV): the first time this downloads torch and takes some minutes"
	@$(UV) --version >/dev/null 2>&1 || $(PYTHON) -m pip install --quiet uv >/dev/null 2>&1 || true
	@{ $(UV) venv --quiet --allow-existing --python "$(PYTHON)" $(VENV) && \
	   $(UV) pip install --quiet --python $(BIN)/python -e '.[$(EXTRAS)]'; } 2>/dev/null || \
	 { echo "no uv here: pip takes some minutes"; [ -x $(BIN)/pip ] || $(PYTHON) -m venv --clear $(VENV); $(BIN)/python -m pip install --quiet -e '.[$(EXTRAS)]'; }
	@touch $@

# the main job on the embedded sample; everything it makes is in demo/. A count of trainings: the answer is the same every time
demo: $(STAMP)
	@rm -rf demo
	@echo "1 of 3: which augmentation helps on 300 images of Fashion-MNIST? Policies that need no search are raced:"
	@echo "        short trainings on some of the images, errors on the others."
	@$(BIN)/fasteraa search --out demo --methods published --subset 300 --race-trainings 16
	@echo; echo "2 of 3: check it. Longer trainings with three seeds on all 300 images, measured on 2,000 test images that the race has not seen."
	@$(BIN)/fasteraa compare --policies none,trivialaugment-wide,chosen=demo --subset 300 --seeds 3 --out demo/comparison
	@echo; echo "3 of 3: the picture and the page."
	@$(BIN)/fasteraa report demo --comparison demo/comparison
	@echo
	@echo "What it does to images:  demo/preview.png"
	@echo "Everything on one page:  demo/report.html   open it in a browser; it has the code to use the policy"
	@echo "Your own images:         $(BIN)/fasteraa search photos/   a folder of images for each class"

test: $(STAMP)
	$(BIN)/python -m pytest -q -n 2 --dist worksteal -m "not expensive and not alone" --durations=15

# what cannot be quick (the mark expensive): a browser (Debian's chromium), every kernel compiled for a GPU
test-slow: $(STAMP)
	$(BIN)/python -m pytest -q -n 2 --dist worksteal -m expensive

# what needs the machine for itself, for minutes: a Ray cluster, torchrun, spawned loaders, 100,000 files, ten kills
test-alone: $(STAMP)
	@$(UV) pip install --quiet --python $(BIN)/python -e '.[$(EXTRAS),ray]' 2>/dev/null || $(BIN)/python -m pip install --quiet -e '.[$(EXTRAS),ray]'
	$(BIN)/python -m pytest -q -m alone

# the exporters with DALI too, whose CPU backend needs no GPU but 600 MB
test-extras: $(STAMP)
	@$(UV) pip install --quiet --python $(BIN)/python -e '.[$(EXTRAS),extras]' 2>/dev/null || $(BIN)/python -m pip install --quiet -e '.[$(EXTRAS),extras]'
	$(BIN)/python -m pytest -q -n 2 --dist worksteal tests/export tests/test_examples.py

# thousands of damaged files of every format that we read, other ones each time: minutes
EXAMPLES ?= 200
fuzz: $(STAMP)
	FASTERAA_FUZZ=$(EXAMPLES) $(BIN)/python -m pytest -q -n 2 --dist worksteal tests/test_fuzz.py

check: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

# every operation against Pillow, pixel by pixel
parity: $(STAMP)
	$(BIN)/python -m fasteraa.testing.parity

# break one line of operation arithmetic at a time; every break must turn a test red
mutate: $(STAMP)
	$(BIN)/python tools/mutate.py --jobs $(JOBS)

# rewrite what is generated from the code (the tests fail when it is stale)
generate: $(STAMP)
	$(BIN)/python tools/generate.py

# the pages as a site in site/; a broken link ends it
docs: generate
	@$(UV) pip install --quiet --python $(BIN)/python -e '.[docs]' 2>/dev/null || $(BIN)/python -m pip install --quiet -e '.[docs]'
	$(BIN)/python tools/site.py
	@rm -rf site
	$(BIN)/zensical build --strict -f mkdocs.yml

clean:
	rm -rf $(VENV) build dist site .cache src/*.egg-info .pytest_cache .mypy_cache .ruff_cache
