"""One contender of a benchmark, in its own process, which takes steps on request.

    python benchmarks/contenders.py '{"who": "timm", "model": "CaiT_XXS24", "batch": 8, ...}'

Prints a line when it is ready. Then, for each number read from standard input, takes that
many steps and prints the time of each step and the peak memory as JSON.
"""

import json
import os
import resource
import sys
import time
import types
from collections.abc import Callable
from pathlib import Path

# Our name of a size -> the peers' name, or arguments, of the same network.
TIMM = {
    "CaiT_XXS24": "cait_xxs24_224",
    "CaiT_S24": "cait_s24_224",
    "ConViT_Ti": "convit_tiny",
    "ConViT_S": "convit_small",
    "ViT_Ti": "deit_tiny_patch16_224",
    "ViT_S": "deit_small_patch16_224",
    "RoPEViT_S": "vit_small_patch16_rope_224",
    "DINOv3_S": "vit_small_patch16_dinov3",
}
SIDES = {"DINOv3_S": 256}  # Of images; 224 for the others.
ZEROMODELS = {
    "CaiT_XXS24": {"embed_dim": 192, "depth": 24, "num_heads": 4},
    "CaiT_S24": {"embed_dim": 384, "depth": 24, "num_heads": 8},
}
KERAS_HUB = {"ViT_Ti": (12, 3, 192), "ViT_S": (12, 6, 384)}
PLAIN = {"DeepViT_S": "deepvit_s", "RefinedViT_S": "refined_vit_s"}


def ours(task: dict) -> Callable[[], None]:
    import keras_vitx as kv

    model = kv.create_model(task["model"], drop_path=0.0, remat=task["remat"])
    return keras_steps(model, task, kv.training.AdamW(1e-4))


def zeromodels(task: dict) -> Callable[[], None]:
    from zeromodels.models.cait import CaiTImageClassify

    head = {"num_classes": 1000, "classifier_activation": "softmax"}
    return keras_steps(CaiTImageClassify(**ZEROMODELS[task["model"]], **head), task)


def keras_hub(task: dict) -> Callable[[], None]:
    from keras_hub.models import ViTBackbone, ViTImageClassifier

    depth, heads, dim = KERAS_HUB[task["model"]]
    backbone = ViTBackbone((224, 224, 3), 16, depth, heads, dim, 4 * dim)
    model = ViTImageClassifier(backbone, 1000, preprocessor=None, activation="softmax")
    return keras_steps(model, task)


def skip_torchvision() -> None:
    """Let timm import torchvision, which may not match torch and is not used here."""
    name = "torchvision._meta_registrations"
    sys.modules.setdefault(name, types.ModuleType(name))


def timm(task: dict) -> Callable[[], None]:
    skip_torchvision()
    import timm

    return torch_steps(timm.create_model(TIMM[task["model"]], num_classes=1000), task)


def plain(task: dict) -> Callable[[], None]:
    import plain

    return torch_steps(getattr(plain, PLAIN[task["model"]])(), task)


def product(task: dict) -> Callable[[], None]:
    """Return one large matrix product, the reference for the rate of the machine."""
    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    dtype = {"float32": torch.float32, "mixed_bfloat16": torch.bfloat16}[task["precision"]]
    a, b = torch.randn(2, task["batch"], task["batch"], device=device, dtype=dtype)

    def step():
        a @ b
        synchronize()

    return step


WHO = {f.__name__: f for f in (ours, zeromodels, keras_hub, timm, plain, product)}


def keras_steps(model, task: dict, optimizer=None) -> Callable[[], None]:
    """Return one step of a Keras model, as in `predict` or `fit`; by default with Keras's AdamW."""
    import keras
    import numpy as np

    images, labels = batch(task)
    model.compile(optimizer or keras.optimizers.AdamW(1e-4), "sparse_categorical_crossentropy")
    images = keras.ops.convert_to_tensor(images)
    if task["mode"] == "train":
        labels = keras.ops.convert_to_tensor(labels)
        # With metrics, as KerasHub compiles its models, a list whose first entry is the loss.
        return lambda: float(np.ravel(model.train_on_batch(images, labels))[0])
    return lambda: np.asarray(model.predict_on_batch(images))


def torch_steps(model, task: dict) -> Callable[[], None]:
    """Return one step of a PyTorch module, in a typical user's loop."""
    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    half = task["precision"] == "mixed_bfloat16"
    images, labels = batch(task)
    images = torch.from_numpy(images).permute(0, 3, 1, 2).contiguous().to(device)
    labels = torch.from_numpy(labels).to(device)
    model = model.to(device).train(task["mode"] == "train")
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4)
    if task["compile"]:
        model = torch.compile(model)

    def train():
        with torch.autocast(device, torch.bfloat16, enabled=half):
            loss = torch.nn.functional.cross_entropy(model(images).float(), labels)
        optimizer.zero_grad()
        loss.backward()
        if task["clip"]:
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return float(loss)

    def predict():
        with torch.inference_mode(), torch.autocast(device, torch.bfloat16, enabled=half):
            return model(images).float().softmax(-1).cpu().numpy()

    return train if task["mode"] == "train" else predict


def batch(task: dict):
    import numpy as np

    random = np.random.default_rng(0)
    size, side = task["batch"], SIDES.get(task["model"], 224)
    images = random.standard_normal((size, side, side, 3), dtype="float32")
    return images, random.integers(1000, size=size)


def synchronize() -> None:
    import torch

    if torch.cuda.is_available():
        torch.cuda.synchronize()


def held() -> float:
    """Return the memory that this process holds, in MiB; GPU memory if there is a GPU."""
    torch = sys.modules.get("torch")
    if torch and torch.cuda.is_available():
        return torch.cuda.memory_allocated() / 2**20
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 2**20


def peak() -> float:
    """Return the peak of that memory so far, in MiB."""
    torch = sys.modules.get("torch")
    if torch and torch.cuda.is_available():
        return torch.cuda.max_memory_allocated() / 2**20
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10


def main() -> None:
    task = {"compile": False, "remat": False, "clip": False, **json.loads(sys.argv[1])}
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # Keep the output of libraries out of the answers.
    if task["precision"] != "float32" and task["who"] in ("ours", "zeromodels", "keras_hub"):
        import keras

        keras.config.set_dtype_policy(task["precision"])
    step = WHO[task["who"]](task)
    before = held()
    print("ready", file=answers, flush=True)
    for line in sys.stdin:
        times = []
        for _ in range(int(line)):
            start = time.perf_counter()
            step()
            times.append(time.perf_counter() - start)
        print(json.dumps({"times": times, "memory": peak() - before}), file=answers, flush=True)


if __name__ == "__main__":
    main()
