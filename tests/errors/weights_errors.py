"""Names of checkpoints, addresses on the hub, and paths of weights."""

from harness import FAMILIES, ROOT

from keras_vitx.weights import resolve

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
    OSError: {
        f"keep {size.lower()} at https://drive.google...its path": of("imagenet", size)
        for size in ("DeepViT_24B", "DeepViT_32B", "DeepViT_S", "DeepViT_L")
    },
}
