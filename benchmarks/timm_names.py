"""timm's names: writes `keras_vitx/weights/timm.tsv` from timm's configurations, and compares.

    python benchmarks/timm_names.py write    # a row per pretrained tag that this package builds
    python benchmarks/timm_names.py          # two blocks of each, full width: loads, equals timm

Needs timm 1.0.31 (`pip install --no-deps torchvision==0.28.0 timm==1.0.31 pyyaml`) and PyTorch.
"""

import csv
import inspect
import json
import logging
import re
import sys
import tempfile
from collections import Counter
from pathlib import Path

import keras
import timm
import torch
from safetensors.torch import save_file

import keras_vitx as kv
from keras_vitx.models import ViT
from keras_vitx.models.build import FAMILIES, MODELS

FILE = Path(kv.__file__).parent / "weights" / "timm.tsv"
MODULES = ("vision_transformer", "eva", "deit", "mlp_mixer", "beit", "cait", "convit", "pit")
MODULES += ("vision_transformer_relpos",)
# Their own kinds of networks.
OTHER = r".*(samvit|hiera|pwee|dpwee|dwee|dlittle|mci|patch16_xp|gmlp|gmixer|resmlp).*"
ACTIVATIONS = {"GELU": "gelu", "GELUTanh": "gelu_tanh", "QuickGELU": "quick_gelu", "SiLU": "silu"}
POOLINGS = {"map": "attention", "": None}
BY_NAME = {
    **{"convit_tiny": "ConViT_Ti", "convit_small": "ConViT_S", "convit_base": "ConViT_B"},
    **{"mixer_b16_224": "Mixer_B16", "pit_b_224": "PiT_B", "pit_b_distilled_224": "PiT_B"},
}
PIT = {
    "s": dict(dims=[144, 288, 576], depths=[2, 6, 4], num_heads=[3, 6, 12]),
    "xs": dict(dims=[96, 192, 384], depths=[2, 6, 4], num_heads=[2, 4, 8]),
    "ti": dict(dims=[64, 128, 256], depths=[2, 6, 4], num_heads=[2, 4, 8]),
}


def of_two_blocks(kind):
    """Let a class of timm's build two blocks, and say how many the network has."""
    build = kind.__init__

    def init(self, *args, depth=12, **kwargs):
        build(self, *args, depth=2, **kwargs)
        self.depth = depth

    kind.__init__ = init


KINDS = timm.models.VisionTransformer, timm.models.Eva, timm.models.beit.Beit


def is_norm(layer):
    return not isinstance(layer, torch.nn.Identity)


def translated(name, model):
    """Return the family of a network of timm, and its arguments, by its attributes."""
    block, patches = model.blocks[0], model.patch_embed
    attention, mlp = block.attn, block.mlp
    norm = "rms" if "RmsNorm" in type(block.norm1).__name__ else "layer"
    gated, bias = hasattr(mlp, "fc1_g") or hasattr(mlp, "gate"), attention.qkv
    hidden = mlp.fc2.in_features
    gated = gated or hidden * 2 == mlp.fc1.out_features
    bias = bias.bias is not None if bias is not None else attention.k_proj.bias is not None
    only_qv = getattr(attention, "q_bias", None) is not None
    if attention.__dict__.get("qkv", attention._modules.get("qkv")) is None:
        only_qv = attention.q_proj.bias is not None and not bias
    scale = getattr(block, "gamma_1", None)
    scale = scale if scale is not None else getattr(getattr(block, "ls1", None), "gamma", None)
    dim, count = model.embed_dim, getattr(model, "num_prefix_tokens", 1)
    distilled = hasattr(model, "dist_token")
    tokens = int(model.cls_token is not None) + distilled
    act = "silu" if gated else ACTIVATIONS[type(mlp.act).__name__]
    pool = getattr(model, "attn_pool", None)
    own = dict(
        dim=dim,
        depth=model.depth,
        num_heads=attention.num_heads,
        mlp_ratio=hidden / dim if hidden / dim * dim == hidden else (hidden + 0.5) / dim,
        patch_size=patches.patch_size[0],
        layer_scale=None if scale is None else 1e-5,
        register_tokens=count - tokens,
        class_token=bool(tokens),
        qkv_bias="qv" if only_qv else bool(bias),
        gated_mlp=gated,
        epsilon=block.norm1.eps,
        pre_norm=is_norm(getattr(model, "norm_pre", torch.nn.Identity())),
        patch_bias=patches.proj.bias is not None,
        last_norm=is_norm(model.norm) or is_norm(model.fc_norm),
        mean_pooling=is_norm(model.fc_norm) and not is_norm(model.norm),
        mlp_norm=is_norm(mlp.norm) if hasattr(mlp, "norm") else False,
        heads_norm=is_norm(attention.norm) if hasattr(attention, "norm") else False,
        norm=norm,
        patch_norm=is_norm(patches.norm),
        proj_bias=attention.proj.bias is not None,
        post_norm="Post" in type(block).__name__,
    )
    rope = getattr(model, "rope", None)
    positions = model.pos_embed
    if rope is None and type(model).__name__ != "Beit":
        own |= dict(
            distillation_token=distilled,
            class_position=(not getattr(model, "no_embed_class", False) and count > 0)
            or (not own["class_token"] and not own["register_tokens"]),
            activation=act,
            attention_pooling=pool is not None,
        )
        assert positions is not None, "no positions"
        return "ViT", own
    if rope is None:
        assert own.pop("qkv_bias") == "qv" and positions is None, "positions, or a bias of keys"
        return "BEiT", own
    kind = type(rope).__name__
    theta = float(rope.temperature)
    order = "xy" if getattr(rope, "grid_indexing", "ij") == "xy" else "yx"
    rotary = dict(temperature=theta, order=order)
    if kind == "RotaryEmbeddingMixed":
        rotary["learned"] = True
    elif kind == "RotaryEmbeddingDinoV3":
        rotary |= dict(halves=True, centered=True)
    else:
        if rope.ref_feat_shape is not None:
            rotary["reference_grid"] = list(rope.ref_feat_shape)
        if rope.grid_offset:
            rotary["offset"] = float(rope.grid_offset)
    own["rotary"] = rotary
    absolute = "patches" if model.no_embed_class else "tokens"
    own["positions"] = None if positions is None else absolute
    if pool is not None:
        own["attention_pooling"] = pool.num_heads
    return "RotaryViT", own


def bare(family, arguments):
    """Return the arguments that differ from the defaults; None if the family lacks one."""
    known = inspect.signature(FAMILIES[family]).parameters
    required = {"dim", "depth", "num_heads", "rotary"}
    neutral = dict(qkv_bias=True, epsilon=1e-6, last_norm=True, norm="layer", patch_bias=True)
    neutral |= dict(proj_bias=True, class_token=True, activation="gelu")
    kept = {}
    for name, value in arguments.items():
        default = known[name].default if name in known else neutral.get(name, False)
        if name in required or value != default:
            if name not in known:
                return None
            kept[name] = value
    return kept


def same_size(family, arguments):
    """Return the name of the size that has these arguments, or None."""

    def comparable(data):
        data = {**defaults, **data}
        data["rotary"] = {**rotary, **(data.get("rotary") or {})}
        grid = data["rotary"]["reference_grid"]
        data["rotary"]["reference_grid"] = grid and tuple(grid)
        data["mlp_ratio"] = int(data["dim"] * data["mlp_ratio"])
        data["layer_scale"] = data["layer_scale"] is not None
        ignored = ("drop_path", "input_shape", "classes", "distillation_token")
        return {name: value for name, value in data.items() if name not in ignored}

    own = inspect.signature(FAMILIES[family]).parameters
    rotary = inspect.signature(kv.layers.RotaryEmbedding).parameters
    rotary = {n: p.default for n, p in rotary.items() if p.default is not p.empty}
    defaults = {n: p.default for n, p in own.items() if p.default is not p.empty}
    wanted = comparable(arguments)
    sizes = (n for n, c in MODELS.items() if c.family == family and "Mini" not in n)
    return next((n for n in sizes if comparable(MODELS[n].data) == wanted), None)


def constructor_of(name, module):
    """Return the constructor of an architecture, and the arguments that differ from its own."""
    if re.fullmatch(OTHER, name):
        return None
    token = {"distillation_token": True} if "distilled" in name else {}
    if name in BY_NAME:
        return BY_NAME[name], token
    if module == "cait":
        return "CaiT_" + name.split("_")[1].upper(), {}
    if module == "pit":
        return "PiT", dict(PIT[name.split("_")[1]], patch_size=16, stride=8) | token
    if name.startswith("mixer_l16"):
        return "Mixer", dict(dim=1024, depth=24)
    try:
        with torch.device("meta"):
            model = timm.create_model(name)
        family, arguments = translated(name, model)
        if family not in FAMILIES or (arguments := bare(family, arguments)) is None:
            return None
    except (AttributeError, AssertionError, KeyError) as error:
        print(name, repr(error))
        return None
    if size := same_size(family, arguments):
        return size, token, model.global_pool
    return family, arguments, model.global_pool


def plain_names():
    for module in MODULES:
        for name in timm.list_models(module=module):
            tags = timm.list_pretrained(f"{name}.*") if timm.is_model_pretrained(name) else []
            if tags:
                yield module, name, tags


def write():
    """Write the table; rows of known checkpoints keep what is known of them and their order."""
    for kind in KINDS:
        of_two_blocks(kind)
    known = {one.name: one for one in kv.weights.checkpoints_of(None) if "hf://timm" in one.source}
    rows, missing = {}, Counter()
    for module, name, tags in plain_names():
        found = constructor_of(name, module)
        if found is None:
            missing[module] += len(tags)
            continue
        constructor, arguments, *pool = found
        for tag in tags:
            rows[tag] = row_of(tag, constructor, dict(arguments), (pool or ["token"])[0], known)
    order = {tag: index for index, tag in enumerate(dict.fromkeys([*known, *rows]))}
    with FILE.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(
            file, delimiter="\t", quoting=csv.QUOTE_NONE, lineterminator="\n", quotechar=None
        )
        for tag in sorted(rows, key=order.get):
            writer.writerow(rows[tag])
    print(len(rows), "rows; without:", dict(missing), [t for t in known if t not in rows])


def row_of(tag, constructor, arguments, pool, known):
    config = timm.get_pretrained_cfg(tag)
    old = known.get(tag)
    if config.num_classes == 0:
        pooling = POOLINGS.get(pool, pool)
        arguments["include_top"] = False
        arguments |= {"pooling": pooling} if pooling else {}
    elif pool == "avg" and not arguments.get("mean_pooling", constructor not in FAMILIES):
        arguments["pooling"] = "avg"
    datasets = {1000: "imagenet", 11821: "imagenet-12k"}
    datasets |= dict.fromkeys((21843, 21841, 11221), "imagenet-21k")
    dataset = old.dataset if old else datasets.get(config.num_classes, tag.partition(".")[2])
    license = old.license if old else config.license or ""
    top = [old.top1, old.top5, old.top1_real, old.top1_v2] if old and old.top1 else []
    mean, std = (json.dumps(list(values)) for values in (config.mean, config.std))
    images = config.input_size[-1], config.num_classes, dataset
    pixels = mean, std, config.crop_pct, config.interpolation
    return [tag, constructor, json.dumps(arguments), *images, *pixels, license, *top]


def randomized(network):
    torch.manual_seed(0)
    for name, value in network.named_parameters():
        spread = value[0].numel() ** -0.5 if value.ndim in (2, 4) else 0.2
        start = 1 if "norm" in name and name.endswith("weight") else 0
        value.data = start + spread * torch.randn(value.shape)
    return network.eval()


def difference(tag):
    """Return how far this package's network is from timm's, of which it reads a strict file.

    Both have two blocks, and images of 3 x 4 patches. A classifier has 5 classes.
    """
    known = kv.weights.find(tag, None)
    base = {**FAMILIES, **MODELS}[known.constructor].data | dict(known.arguments)
    cut = in_timm = {"depth": 2}
    if "PiT" in known.constructor:
        cut, in_timm = {"depths": (1, 1, 1)}, {"depth": (1, 1, 1)}
    if "ConViT" in known.constructor:
        cut, in_timm = {**cut, "local_depth": 1}, {**cut, "local_up_to_layer": 1}
    patch = base.get("patch_size", 16)
    size = (3 * patch, 4 * patch)
    if known.constructor.startswith(("ConViT", "BEiT", "Mixer")):
        size = (4 * patch, 4 * patch) if "Mixer" not in known.constructor else (224, 224)
    sizes = {} if "Mixer" in known.constructor else {"img_size": size}
    heads = {"num_classes": 5 if known.classes else 0}
    if "Mixer" in known.constructor:  # timm fixes its depth.
        cut = in_timm = {}
    theirs = randomized(timm.create_model(known.architecture, **sizes, **heads, **in_timm))
    x = torch.randn(1, 3, *size)
    with tempfile.TemporaryDirectory() as directory, torch.no_grad():
        save_file(
            {n: v.contiguous() for n, v in theirs.state_dict().items()},
            path := f"{directory}/m.safetensors",
        )
        ours = kv.create_model(
            tag, weights=path, input_shape=(*size, 3), classifier_activation=None, **cut
        )
        want = theirs(x).numpy()
        images = keras.ops.convert_to_tensor(x.permute(0, 2, 3, 1).numpy())
        got = keras.ops.convert_to_numpy(ours(images, training=False))
    assert got.shape == want.shape, (got.shape, want.shape)
    return float(abs(got - want).max() / abs(want).max())


def main(step=1):
    """Print, by module, the tags that load strictly and equal timm; once for equal arguments."""
    logging.disable(logging.WARNING)
    counts, results = Counter(), {}
    names = {
        c.name: c for c in kv.weights.checkpoints_of(None) if c.source.startswith("hf://timm/")
    }
    module_of = {tag: module for module, _, tags in plain_names() for tag in tags}

    def width(known):
        return {**MODELS.get(known.constructor, ViT).data, **known.arguments}.get("dim", 0)

    for tag, known in sorted(names.items(), key=lambda pair: width(pair[1]))[::step]:
        own = {n: v for n, v in known.arguments.items() if n != "depth"}
        key = known.constructor, json.dumps(own, sort_keys=True), bool(known.classes)
        if key not in results:
            try:
                results[key] = difference(tag)
            except Exception as error:
                results[key] = 1.0
                print(f"{tag}: {error}"[:400])
            print(f"{tag} {results[key]:.0e}", flush=True)
        counts[module_of[tag], "equal" if results[key] < 1e-5 else "other"] += 1
    for module in MODULES:
        total = sum(found == module for found in module_of.values())
        right, wrong = counts[module, "equal"], counts[module, "other"]
        print(f"{module}: {total} tags, {right + wrong} by name, {right} equal timm")
    right = sum(count for (_, kind), count in counts.items() if kind == "equal")
    print(f"together: {len(module_of)} tags, {right} equal timm")


if __name__ == "__main__":
    write() if sys.argv[1:] == ["write"] else main(*map(int, sys.argv[1:]))
