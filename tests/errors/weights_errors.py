"""Names of checkpoints, addresses on the hub, and paths of weights."""

from harness import FAMILIES, ROOT, numbers

from keras_vitx.weights import find_source, save_safetensors

BACKEND_FREE = True
TOKEN = {"distillation_token": True}


def of(*arguments, **more):
    return lambda: find_source(*arguments, **more)


def tensors(name="new.safetensors", **options):
    return lambda classifier, empty: save_safetensors(classifier, empty / name, **options)


def large(empty):
    model = FAMILIES["Mixer"]()
    model.get_layer("head").kernel.assign(numbers((8, 5), scale=1e6))
    save_safetensors(model, empty / "new.safetensors", dtype="float16")


ERRORS = {
    ValueError: {
        "weights='hf://owner'": of("hf://owner"),
        "weights=...must be a repository of a model": of("hf://datasets/a/b/c.pth"),
        "weights='hf://owner/repo/model.onnx' should": of("hf://owner/repo/model.onnx"),
        "README.md' should end in one of: .safetensors, .pth": of(ROOT / "README.md"),
        "weights=...CaiT_XS36 has no public ...No checkpoint": of("imagenet", "CaiT_XS36"),
        "weights=...Did you mean 'imagenet'": of("imagnet", "CaiT_XXS24"),
        "weights=...'cait_xxs24_224.fb_dist_in1k'": of("cait_xxs24_225.fb_dist_in1k", "CaiT_XXS24"),
        "weights=...of CaiT_S36, not of CaiT_S24": of("cait_s36_384.fb_dist_in1k", "CaiT_S24"),
        "weights=...It has: cait_mini_cifar10": of("imagenet", "CaiT_Mini"),
        "weights=...name a checkpoint: ": of("cifar10"),
        "weights=...CaiT_S24 has no public checkpoint of it": of("cifar10", "CaiT_S24"),
        "needs distillation_token=True. Received: False": of(
            "deit_tiny_distilled_patch16_224.fb_in1k", "ViT_Ti"
        ),
        "needs distillation_token=False. Received: True": of(
            "deit_tiny_patch16_224.fb_in1k", "ViT_Ti", **TOKEN
        ),
        "CaiT_S24 with distillation_token=True has no public": of("imagenet", "CaiT_S24", **TOKEN),
        "`path` must end in .safetensors": tensors("new.bin"),
        "`dtype` must be ... 'int8'": tensors(dtype="int8"),
        "`dtype` must be None for head.weight": large,
        "Write to a local path and copy it...gs://bucket/m.safetensors": lambda classifier: (
            save_safetensors(classifier, "gs://bucket/m.safetensors")
        ),
    },
    FileNotFoundError: {"weights='absent.pth': there is no such file": of("absent.pth")},
    OSError: {
        "keep deepvit_s at https://drive.google...its path": of("imagenet", "DeepViT_S"),
    },
}
