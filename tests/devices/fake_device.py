# ruff: noqa: E402
"""PyTorch on a device that computes nothing: every operation of a training step, counted.

    KERAS_BACKEND=torch python tests/devices/fake_device.py FAMILY:POLICY ...

A device of PyTorch's extension mechanism whose tensors have shapes but no data
(`FakeTensorMode`). Prints one line of JSON per family and policy with, for inference, in float32
for a forward and backward pass, and for the second training step, the number of kernels and of
casts, and the places where the host would wait for the device.
"""

import collections
import json
import os
import sys
import traceback

os.environ["KERAS_BACKEND"], os.environ["KERAS_TORCH_DEVICE"] = "torch", "fakedev"

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

_setup_privateuseone_for_python_backend("fakedev")
torch._C._set_only_lift_cpu_tensors(True)
FakeTensorMode.avoid_device_init = property(lambda self: True)
torch._C._ensureCUDADeviceGuardSet = lambda: None

import keras
from zoo import TINY, compiled

# Operations that move no data.
VIEWS = (
    *("device", "view", "_unsafe_view", "reshape", "_reshape_alias", "_reshape_copy", "transpose"),
    *("permute", "expand", "slice", "select", "unsqueeze", "squeeze", "t", "as_strided", "detach"),
    *("alias", "split", "unsafe_split", "split_with_sizes", "chunk", "unbind", "unfold"),
    *("lift_fresh", "is_same_size", "set_data"),
    *("empty", "empty_like", "empty_strided", "new_empty"),
)
READS = ("_local_scalar_dense", "item", "equal", "is_nonzero", "nonzero")


class Log(TorchDispatchMode):
    """Counts operations, and notes where the host waits, or devices or dtypes are mixed."""

    current: "Log | None" = None

    def __init__(self):
        super().__init__()
        self.kernels, self.depthwise = collections.Counter(), 0
        self.waits, self.mixed = collections.Counter(), collections.Counter()

    def __enter__(self):
        Log.current = self
        return super().__enter__()

    def __exit__(self, *error):
        Log.current = None
        return super().__exit__(*error)

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        name = function._schema.name.split("::")[1]
        taken = [x for x in tree_leaves((args, kwargs or {})) if isinstance(x, torch.Tensor)]
        if name in READS:
            self.waits[f"{name} {place()}"] += 1
            if name == "_local_scalar_dense":  # Such as whether all gradients are finite.
                return True
        # It changes its arguments in place, and has no shapes of its own.
        is_update = name == "_fused_adamw_"
        out = None if is_update else function(*args, **(kwargs or {}))
        given = [x for x in tree_leaves(out) if isinstance(x, torch.Tensor)]
        before, after = ({x.device.type for x in part} for part in (taken, given))
        copies = name in ("_to_copy", "copy_")
        if "fakedev" in after and "cpu" in before:
            # A scalar on the host may be an argument of a kernel.
            if copies:
                self.waits[f"to the device {place()}"] += 1
            elif any(x.ndim for x in taken if x.device.type == "cpu"):
                self.mixed[f"{name} {place()}"] += 1
        if name == "native_layer_norm" and len({x.dtype for x in taken}) > 1:
            self.mixed[f"dtypes {name} {place()}"] += 1  # CUDA raises, a CPU does not.
        if "cpu" in after and "fakedev" in before:
            self.waits[f"to the host {place()}"] += 1
        if name.startswith("convolution") and args[8 + name.endswith("backward")] > 1:
            self.depthwise += 1
        if name not in VIEWS and "fakedev" in before | after:
            self.kernels[name] += 1
        return out

    def report(self):
        counts = {"kernels": self.kernels.total(), "casts": self.kernels["_to_copy"]}
        places = {"waits": dict(self.waits), "mixed": dict(self.mixed)}
        counts["depthwise"] = self.depthwise
        return counts | places


def place():
    """Return the two innermost lines of the package, or of Keras, that are being run."""
    frames = reversed(traceback.extract_stack()[:-2])
    found = [f for f in frames if "/keras_vitx/" in f.filename or "/keras/src/" in f.filename]
    return " < ".join(f"{f.filename.split('/keras')[-1]}:{f.lineno}" for f in found[:3])


def without_casts():
    """Let attention cast nothing, as the kernels of a GPU do."""

    def attention(query, key, value, attn_mask=None, **options):
        return torch.softmax(query @ key.mT, -1) @ value

    torch.nn.functional.scaled_dot_product_attention = attention


def no_generator():
    """Let Keras draw from the device's own generator, noting that its seed is read."""
    import keras.src.backend.torch.random as random
    from keras.src.random.seed_generator import draw_seed

    def generator(seed):
        draw_seed(seed)
        if Log.current is not None:
            Log.current.waits[f"reads a seed {place()}"] += 1

    random.torch_seed_generator = generator


def without_fake_types():
    """Let PyTorch and the package take fake tensors for tensors: they stand for a device's."""
    from torch.utils import _foreach_utils

    import keras_vitx.layers.kernels.torch as kernels

    _foreach_utils._foreach_supported_types.append(FakeTensor)

    def is_traced(x):
        types = torch.Tensor, torch.nn.Parameter, FakeTensor
        return torch.compiler.is_compiling() or torch.jit.is_tracing() or type(x) not in types

    kernels.is_traced = is_traced


def measure(make, policy, batch=2):
    keras.utils.clear_session()
    keras.config.set_dtype_policy(policy)
    with FakeTensorMode(allow_non_fake_inputs=True):
        model = compiled(make(drop_path=0.1))
        images = torch.randn(batch, *model.input_shape[1:], device="fakedev")
        labels = torch.zeros(batch, dtype=torch.int64, device="fakedev")
        logs = {"inference": Log(), "passes": Log(), "step": Log()}
        with logs["inference"], torch.no_grad():
            model(images, training=False)
        if policy == "float32":
            with logs["passes"]:
                model(images, training=True).sum().backward()
        for log in (Log(), logs["step"]):  # The first step makes the variables of the optimizer.
            with log:
                model.train_step((images, labels))
        paths = [v.path for v in model.trainable_variables]
        weights = sum("head" not in path for path in paths)
        return {"weights": weights} | {stage: log.report() for stage, log in logs.items()}


if __name__ == "__main__":
    without_casts()
    no_generator()
    without_fake_types()
    for argument in sys.argv[1:]:
        family, policy = argument.split(":")
        try:
            found = measure(TINY[family], policy)
        except Exception as error:
            found = {"error": f"{type(error).__name__}: {error}"[:300]}
        print(json.dumps([family, policy, found]), flush=True)
