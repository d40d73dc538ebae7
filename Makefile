# `make demo` and `make test` install their dependencies into .venv, then run; the demo those of BACKEND.

PYTHON ?= python3
# The versions tested by CI. `make test-oldest` and `make test-newest` use others.
CONSTRAINTS ?= .ci/constraints.txt
# Plain `torch` may download gigabytes of CUDA libraries; this release has a CPU build on the index.
TORCH ?= torch==2.13.0
# Reference implementations used by the tests (scikit-image for its photographs); tests that miss
# one are skipped. Installed without dependencies, which would install another PyTorch.
PEERS ?= timm==1.0.31 torchvision==0.28.0 pyyaml scikit-image==0.26.0
# The documentation needs only its photographs; the package is not imported.
PHOTOGRAPHS ?= scikit-image==0.26.0
# In docs/site/npm.sha256, too. ONNX Runtime Web is for examples/browser.
NPM ?= katex@0.16.47 iframe-worker@1.0.4 onnxruntime-web@1.30.0
BACKENDS ?= jax tensorflow torch
BACKEND ?= tensorflow
export TF_CPP_MIN_LOG_LEVEL ?= 2

.PHONY: demo docs test test-backend-free test-older test-oldest test-newest test-others sizes numbers lint constraints clean \
	$(BACKENDS:%=test-%) $(BACKENDS:%=test-avx2-%) $(BACKENDS:%=test-sse4-%)

demo: .venv/demo-$(BACKEND)
	KERAS_BACKEND=$(BACKEND) .venv/bin/python examples/demo.py

# One process per backend, and one for the tests that need none (with PyTorch, which starts
# fastest); as many processes in parallel as there are cores, one thread each: with models this
# small, more threads would only contend. A backend that collects no tests fails.
test: .venv/test
	@$(MAKE) --no-print-directory --keep-going --jobs=$$(nproc) --output-sync=target \
	test-backend-free $(BACKENDS:%=test-%) $(OLDER)

# Tests are compiled without optimization (tests/conftest.py); parity of the logits and tokens under
# JAX also as users' code is.
GOLDEN = tests/models/test_golden.py
PYTEST = OMP_NUM_THREADS=1 .venv/bin/python -m pytest -q

$(BACKENDS:%=test-%): test-%: .venv/test
	@echo "== $*"
	@KERAS_BACKEND=$* $(PYTEST) -m "not backend_free" tests
	@$(if $(filter jax,$*),KERAS_BACKEND=jax XLA_FLAGS= $(PYTEST) -k inference $(GOLDEN))

test-backend-free: .venv/test
	@echo "== backend-free"
	@KERAS_BACKEND=torch $(PYTEST) -m backend_free tests

# Most processors have no AVX-512, some no AVX. PyTorch's operators and those of oneDNN hold code for
# each kind of processor; XLA compiles for one, and TensorFlow takes oneDNN on newer ones only. The
# variables only lower what the processor has.
AVX2 = ONEDNN_MAX_CPU_ISA=AVX2 ATEN_CPU_CAPABILITY=default TF_ENABLE_ONEDNN_OPTS=0 \
	XLA_FLAGS=--xla_cpu_max_isa=AVX2
SSE4 = ONEDNN_MAX_CPU_ISA=SSE41 ATEN_CPU_CAPABILITY=default TF_ENABLE_ONEDNN_OPTS=0 \
	XLA_FLAGS=--xla_cpu_max_isa=SSE4_2
# The kernels, and what runs in half precision but in a fresh process, which says nothing more.
OLDER_TESTS = -m "not backend_free" -k "(kernels or float16 or half_precision) and not (fresh or suite)" \
	tests/layers/test_kernels.py tests/layers/test_layer_contract.py \
	tests/models/test_model_contract.py tests/devices/test_half_precision.py
OLDER = $(BACKENDS:%=test-avx2-%) $(filter test-sse4-torch,$(BACKENDS:%=test-sse4-%))

test-older: $(OLDER)

$(BACKENDS:%=test-avx2-%): test-avx2-%: .venv/test
	@echo "== $*, without AVX-512"
	@$(AVX2) KERAS_BACKEND=$* $(PYTEST) $(OLDER_TESTS)

$(BACKENDS:%=test-sse4-%): test-sse4-%: .venv/test
	@echo "== $*, without AVX"
	@$(SSE4) KERAS_BACKEND=$* $(PYTEST) $(OLDER_TESTS)

# What the package needs of others, with the oldest versions that pyproject.toml allows and with the
# newest. The newest may need a newer Python, for which the index may have no CPU build of PyTorch:
# `make test-newest PYTHON=python3.13 BACKENDS="jax tensorflow"`. PyTorch is $(TORCH) in both.
VERSION_TESTS = tests/test_keras_internals.py tests/layers tests/models/test_build.py \
	tests/models/test_chain.py tests/models/test_golden.py tests/training/test_fit.py \
	tests/training/test_optimizer.py tests/weights/test_weight_files.py
comma = ,
EXTRAS = $(subst $() ,$(comma),$(strip $(BACKENDS) plots metrics tensorboard))

test-oldest test-newest: test-%:
	$(PYTHON) -m venv --clear .venv-$*
	.venv-$*/bin/python -m pip install -q --upgrade pip $(if $(filter torch,$(BACKENDS)),"$(TORCH)")
	.ci/oldest > .venv-$*/oldest.txt
	.venv-$*/bin/python -m pip install -q $(if $(filter oldest,$*),-c .venv-$*/oldest.txt) \
	-e ".[$(EXTRAS)]" pytest hypothesis
	@for backend in $(BACKENDS); do echo "== $$backend"; \
	OMP_NUM_THREADS=1 KERAS_BACKEND=$$backend .venv-$*/bin/python -m pytest -q \
	$(VERSION_TESTS) || exit 1; done

# What uses packages too large for every run of the tests: searches, trackers, Ray.
OTHERS ?= optuna==5.0.0 keras-tuner==1.4.8 wandb==0.31.0 mlflow-skinny==3.17.2 six pandas ray[data]==2.60.0
test-others:
	$(PYTHON) -m venv --clear .venv-others
	.venv-others/bin/python -m pip install -q -c $(CONSTRAINTS) "$(TORCH)" -e ".[torch,plots]" pytest hypothesis
	.venv-others/bin/python -m pip install -q $(OTHERS)
	KERAS_BACKEND=torch .venv-others/bin/python -m pytest -q tests/test_docs.py tests/test_examples.py \
	-k "search or two_workers"

# The documentation, in site/. It has an environment of its own; figures are drawn with PyTorch.
docs: .venv-docs/installed build/npm
	KERAS_BACKEND=torch .venv-docs/bin/python docs/site/build.py

.venv-docs/installed: pyproject.toml $(CONSTRAINTS)
	$(PYTHON) -m venv .venv-docs
	.venv-docs/bin/python -m pip install -q --upgrade pip
	.venv-docs/bin/python -m pip install -q -c $(CONSTRAINTS) "$(TORCH)"
	.venv-docs/bin/python -m pip install -q -c $(CONSTRAINTS) -e ".[docs]"
	.venv-docs/bin/python -m pip install -q -c $(CONSTRAINTS) --no-deps $(PHOTOGRAPHS)
	@touch $@

# KaTeX, for the formulas, and the shim of the search: fixed versions with fixed checksums.
build/npm: docs/site/npm.sha256
	rm -rf $@ && mkdir -p $@
	cd $@ && npm pack --silent $(NPM) >/dev/null && sha256sum --quiet --check $(CURDIR)/$<
	cd $@ && for package in $(NPM); do tar xzf $$(echo $$package | tr @ -).tgz && mv package $${package%@*}; done

# What follows from the sizes, after adding one.
sizes: .venv/test
	PYTHONPATH=. KERAS_BACKEND=torch .venv/bin/python benchmarks/sizes.py

# Numbers of README and docs that differ from what their commands give; with CIFAR10=cifar10.npz,
# also of those that take up to an hour. What takes less than a minute is a test, too.
numbers: .venv/test
	PYTHONPATH=. KERAS_BACKEND=torch .venv/bin/python benchmarks/stated.py \
	$(if $(CIFAR10),--cifar10 $(CIFAR10))

lint: .venv/test
	.venv/bin/ruff format --check .
	.venv/bin/ruff check .
	.venv/bin/codespell --skip imagenet_classes.txt *.md docs keras_vitx examples benchmarks weights/README.md

.venv/bin/python:
	$(PYTHON) -m venv .venv
	.venv/bin/python -m pip install -q --upgrade pip

.venv/demo-$(BACKEND): pyproject.toml $(CONSTRAINTS) | .venv/bin/python
	.venv/bin/python -m pip install -c $(CONSTRAINTS) -e ".[$(BACKEND),plots]"
	@touch $@

.venv/test: pyproject.toml $(CONSTRAINTS) | .venv/bin/python
	.venv/bin/python -m pip install -q -c $(CONSTRAINTS) "$(TORCH)"
	.venv/bin/python -m pip install -q -c $(CONSTRAINTS) -e ".[dev]"
	.venv/bin/python -m pip install -q -c $(CONSTRAINTS) --no-deps $(PEERS)
	@touch $@

# Pins the versions installed in .venv; run it after changing dependencies.
constraints: .venv/test
	@{ echo '# What CI installs, written by `make constraints`.'; \
	.venv/bin/python -m pip freeze --exclude-editable | grep -v '^torch=='; echo "$(TORCH)"; } \
	> .ci/constraints.txt

clean:
	rm -rf .venv .venv-oldest .venv-newest .venv-docs build site
