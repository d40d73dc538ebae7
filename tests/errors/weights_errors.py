"""Names of checkpoints, addresses on the hub, and paths of weights."""

import keras
from harness import FAMILIES, ROOT, numbers

import keras_vitx as kv
from keras_vitx.weights import resolve, save_safetensors, save_torch

BACKEND_FREE = True
TOKEN = {"distillation_token": True}
ADDRESSES = (
    *("hf://", "hf://owner", "hf:///x", "hf://a b/c", "hf://-a/c", "hf://a/b@", "hf://a/b@/c"),
    *("hf://../b", "hf://a/..", "hf://a/b/../c.pth", "hf://a/b/./c.pth", "hf://a/b//c.pth"),
    *("hf://a/b//etc/passwd", "hf://a/b/c\\..\\d.pth", "hf://a/b/C:/d.pth"),
    *("hf://a/b/%2e%2e/c", "hf://a/b@../c.pth", "hf://a/b@..%2F..%2Fx", "hf://a/b@%2Fetc"),
    *("hf://a/b@x\0/c.pth", "hf://datasets/a/b/c.pth", "hf://spaces/a/b/c.pth"),
    "hf://buckets/a/b/c.pth",
)


def of(*arguments, **more):
    return lambda: resolve(*arguments, **more)


def name_classes(names):
    FAMILIES["Mixer"]().class_names = names


def save(**options):
    return lambda classifier, empty: kv.save(classifier, empty / "new", **options)


def tensors(name="new.safetensors", **options):
    return lambda classifier, empty: save_safetensors(classifier, empty / name, **options)


def large(empty):
    model = FAMILIES["Mixer"]()
    model.get_layer("head").kernel.assign(numbers((8, 5), scale=1e6))
    save_safetensors(model, empty / "new.safetensors", dtype="float16")


ERRORS = {
    ValueError: {
        **{f"weights={one!r} must read": of(one) for one in ADDRESSES},
        "weights='hf://owner/repo/model.onnx' should": of("hf://owner/repo/model.onnx"),
        "README.md' should end in one of: .safetensors, .pth": of(ROOT / "README.md"),
        "`weights` must be a name, a path or None. Received: 3": of(3),
        **{
            f"weights=...{size} has no public ...No checkpoint": of("imagenet", size)
            for size in ("CaiT_XS36", "CaiT_S48", "CaiT_M24")
        },
        "weights=...Did you mean 'imagenet'": of("imagnet", "CaiT_XXS24"),
        "weights=...'cait_xxs24_224.fb_dist_in1k'": of("cait_xxs24_225.fb_dist_in1k", "CaiT_XXS24"),
        "weights=...of CaiT_S36, not of CaiT_S24": of("cait_s36_384.fb_dist_in1k", "CaiT_S24"),
        "weights=...It has: cait_mini_cifar10": of("imagenet", "CaiT_Mini"),
        "weights=...needs the constructor": of("imagenet"),
        "weights=...name a checkpoint: ": of("cifar10"),
        "weights=...CaiT_S24 has no public checkpoint of it": of("cifar10", "CaiT_S24"),
        "needs distillation_token=True. Received: False": of(
            "deit_tiny_distilled_patch16_224.fb_in1k", "ViT_Ti"
        ),
        "needs distillation_token=False. Received: True": of(
            "deit_tiny_patch16_224.fb_in1k", "ViT_Ti", **TOKEN
        ),
        "CaiT_S24 with distillation_token=True has no public": of("imagenet", "CaiT_S24", **TOKEN),
        "`class_names` must be a list...Received: 'cat'": lambda: name_classes("cat"),
        "`class_names` must be a list...Received: {0: 'cat'": lambda: name_classes({0: "cat"}),
        "`accuracy` must be ... 0 to 1...71.35": save(accuracy=71.35, dataset="cifar10"),
        "`accuracy` must be ... 'high'": save(accuracy="high", dataset="cifar10"),
        "`dataset` must name the data ... None": save(accuracy=0.5),
        "`license` must be ... ['mit']": save(license=["mit"]),
        "`recipe` must be ... 3": save(recipe=3),
        "`recipe` must be ... <module 'keras'": save(recipe={"model": keras}),
        "`directory` must be ... `keras_vitx.push": lambda classifier: kv.save(
            classifier, "hf://owner/repo"
        ),
        "`model` must be ... 'Sequential'": lambda empty: kv.save(
            keras.Sequential(), empty / "new"
        ),
        "`path` must end in .safetensors": tensors("new.bin"),
        "`path` must end in .pth": lambda classifier, empty: save_torch(
            classifier, empty / "a.bin"
        ),
        "`dtype` must be ... 'int8'": tensors(dtype="int8"),
        "`metadata` must be ... {'epoch': 3}": tensors(metadata={"epoch": 3}),
        "`metadata` must not have the model's ... ['grid']": tensors(metadata={"grid": "[2, 2]"}),
        "`dtype` must be 'float32' for head.weight": large,
    },
    FileNotFoundError: {
        "weights='...absent.pth': there is no such file": lambda tmp_path: resolve(
            tmp_path / "absent.pth"
        ),
        "weights='absent.pth': there is no such file": of("absent.pth"),
    },
    IsADirectoryError: {
        "is a directory without config.json": lambda tmp_path: resolve(tmp_path),
    },
    NotADirectoryError: {
        "'CaiT_S24' is not a directory. Give one, a .keras file": lambda: kv.load("CaiT_S24"),
    },
    OSError: {
        f"keep {size.lower()} at https://drive.google...its path": of("imagenet", size)
        for size in ("DeepViT_24B", "DeepViT_32B", "DeepViT_S", "DeepViT_L")
    },
}
