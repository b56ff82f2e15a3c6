# make report   install if needed, run the whole chain on the embedded model, write report.html
# make test     ruff, pyright, import-linter, pytest (warnings are errors, shapes and types enforced)
# make test-portable  the quick tests of theory, measure and experiments once more, as a CPU without AVX adds numbers
# make lint     the first three of them
# make docs     the documentation site, in site/, every warning an error
# make tutorials  run the notebooks again and store what they print
# make stress   what is too long for the tests: kills, signals, hostile input, memory
# make bench    timings side by side, against what a user would otherwise write
PYTHON ?= python3
BIN := .venv/bin
INSTALLED := .venv/.installed

.PHONY: report test test-portable lint docs tutorials bench stress

report: $(INSTALLED)
	$(BIN)/ostools report --out report.html

test: lint
	$(BIN)/python -m pytest -n auto --dist loadfile --no-loadscope-reorder

test-portable: $(INSTALLED)
	ATEN_CPU_CAPABILITY=default OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 $(BIN)/python -m pytest -n auto -m "not slow" tests/theory tests/measure tests/experiments

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/pyright

docs: $(INSTALLED)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

tutorials: $(INSTALLED)
	$(BIN)/python tutorials/write.py

bench: $(INSTALLED)
	$(BIN)/python -m benchmarks

stress: $(INSTALLED)
	-$(BIN)/pip install --disable-pip-version-check -q atheris==3.0.0
	$(BIN)/python -m stress

# The lock pins everything, the build tools too, so the package itself is installed without asking an index again.
$(INSTALLED): requirements.lock pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(None if sys.version_info >= (3, 11) else "Python 3.11 or later is needed; call make PYTHON=/path/to/python3.11")'
	test -d .venv || $(PYTHON) -m venv .venv
	$(BIN)/pip install --disable-pip-version-check -q -r requirements.lock
	$(BIN)/pip install --disable-pip-version-check -q --no-deps --no-build-isolation -e .
	touch $(INSTALLED)
