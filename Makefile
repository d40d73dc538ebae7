# `make demo` and `make test` each set up what they need in .venv and run.

PYTHON ?= python3
# The versions that CI tests. `make test-newest` takes the newest ones instead.
CONSTRAINTS ?= .ci/constraints.txt
# A plain `torch` may bring gigabytes of CUDA; of this release the package index has a CPU build.
TORCH ?= torch==2.13.0
# What tests compare with (scikit-image for its photographs). Tests skip what is missing.
# Without their dependencies, which would bring another PyTorch.
PEERS ?= timm==1.0.31 torchvision==0.28.0 pyyaml scikit-image==0.26.0
BACKENDS ?= jax tensorflow torch
BACKEND ?= tensorflow
export TF_CPP_MIN_LOG_LEVEL ?= 2

.PHONY: demo test test-newest lint constraints clean $(BACKENDS:%=test-%)

demo: .venv/demo
	.venv/bin/keras-vitx demo --backend $(BACKEND)

# One process per backend, as many at a time as there are cores, with one thread each: in
# models as small as these, more threads would wait for each other. A backend that runs no
# test fails. What touches no backend runs once, with PyTorch, which starts soonest.
test: .venv/test
	@$(MAKE) --no-print-directory --jobs=$$(nproc) --output-sync=target $(BACKENDS:%=test-%)

test-jax test-tensorflow: MARKS = -m "not backend_free"

$(BACKENDS:%=test-%): test-%: .venv/test
	@echo "== $*"
	@OMP_NUM_THREADS=1 KERAS_BACKEND=$* .venv/bin/python -m pytest -q $(MARKS) tests

# Whether a new Keras, or a new backend, still keeps what the package relies on.
test-newest:
	$(PYTHON) -m venv .venv-newest
	.venv-newest/bin/python -m pip install -q "$(TORCH)"
	.venv-newest/bin/python -m pip install -q --upgrade --upgrade-strategy eager -e ".[test]" "$(TORCH)"
	@for backend in $(BACKENDS); do echo "== $$backend"; \
	OMP_NUM_THREADS=1 KERAS_BACKEND=$$backend .venv-newest/bin/python -m pytest -q \
	tests/test_keras_internals.py tests/layers tests/models/test_golden.py || exit 1; done

lint: .venv/test
	.venv/bin/ruff format --check .
	.venv/bin/ruff check .

.venv/bin/python:
	$(PYTHON) -m venv .venv
	.venv/bin/python -m pip install -q --upgrade pip

.venv/demo: pyproject.toml $(CONSTRAINTS) | .venv/bin/python
	.venv/bin/python -m pip install -q -c $(CONSTRAINTS) -e ".[$(BACKEND),data,plots,export]"
	@touch $@

.venv/test: pyproject.toml $(CONSTRAINTS) | .venv/bin/python
	.venv/bin/python -m pip install -q -c $(CONSTRAINTS) "$(TORCH)"
	.venv/bin/python -m pip install -q -c $(CONSTRAINTS) -e ".[dev]"
	.venv/bin/python -m pip install -q -c $(CONSTRAINTS) --no-deps $(PEERS)
	@touch $@

# Pins what is installed in .venv, after a change of dependencies.
constraints: .venv/test
	@{ echo '# What CI installs, written by `make constraints`.'; \
	.venv/bin/python -m pip freeze --exclude-editable | grep -v '^torch=='; echo "$(TORCH)"; } \
	> .ci/constraints.txt

clean:
	rm -rf .venv .venv-newest
