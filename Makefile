# `make demo` and `make test` each set up what they need in .venv and run.

PYTHON ?= python3
# A plain `torch` may bring gigabytes of CUDA; this release is served as a CPU
# build where the package index has one.
TORCH ?= torch==2.13.0
# What tests compare with (scikit-image for its photographs), and skip where it
# is missing. Without what they depend on, since that would bring another PyTorch.
PEERS ?= timm==1.0.31 torchvision==0.28.0 pyyaml scikit-image==0.26.0
BACKENDS ?= jax tensorflow torch
BACKEND ?= tensorflow
export TF_CPP_MIN_LOG_LEVEL ?= 2

.PHONY: demo test lint clean $(BACKENDS:%=test-%)

demo: .venv/demo
	.venv/bin/keras-vitx demo --backend $(BACKEND)

# Each backend in a process of its own, as many at a time as there are cores, with
# a thread each: in models as small as these, more would wait for each other.
# A backend that runs no test fails.
test: .venv/test
	@$(MAKE) --no-print-directory --jobs=$$(nproc) --output-sync=target $(BACKENDS:%=test-%)

$(BACKENDS:%=test-%): test-%: .venv/test
	@echo "== $*"
	@OMP_NUM_THREADS=1 KERAS_BACKEND=$* .venv/bin/python -m pytest -q tests

lint: .venv/test
	.venv/bin/ruff format --check .
	.venv/bin/ruff check .

.venv/bin/python:
	$(PYTHON) -m venv .venv
	.venv/bin/python -m pip install -q --upgrade pip

.venv/demo: pyproject.toml | .venv/bin/python
	.venv/bin/python -m pip install -q -e ".[$(BACKEND),data,plots,export]"
	@touch $@

.venv/test: pyproject.toml | .venv/bin/python
	.venv/bin/python -m pip install -q "$(TORCH)"
	.venv/bin/python -m pip install -q -e ".[dev]"
	.venv/bin/python -m pip install -q --no-deps $(PEERS)
	@touch $@

clean:
	rm -rf .venv
