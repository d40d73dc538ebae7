"""Arguments of layers, what they are built for or called with, and arguments of models."""

import keras
import numpy as np
from harness import FAMILIES, numbers

import keras_vitx as kv
from keras_vitx import layers as kvl
from keras_vitx.layers import MLP, Attention, Block, LocalMapConvolution, PatchEmbedding

BACKEND_FREE = True


def made(family, **arguments):
    return lambda: FAMILIES[family](**arguments)


def features(family, *blocks, **arguments):
    return lambda: kv.features(FAMILIES[family](), *blocks, **arguments)


def training(labels, **compiled):
    """Train a model of two heads."""

    def call():
        model = FAMILIES["ViT"](distillation_token=True)
        model.compile("sgd", **compiled)
        model.train_on_batch(numbers((4, 16, 16, 3)), labels)

    return call


PIXELS = np.random.default_rng(0).integers(0, 256, (6, 16, 16, 3), "uint8")


def prepared(array):
    return lambda: kv.preprocess_input(keras.ops.convert_to_tensor(array), FAMILIES["ViT"]())


def as_chain(make):
    a, b = keras.Input((4,)), keras.Input((4,))
    return lambda: kv.as_chain(make(a, b))


SPARSE, CLASS = "sparse_categorical_crossentropy", np.array([0, 1, 2, 0])
SHARED_LATE = lambda index: kvl.SharedAttention(2) if index == 1 else Attention(2)  # noqa: E731
IMAGES = (None, 8, 10, 3)
ERRORS = {
    ValueError: {
        "`kernel_size` must be odd. Received: 2": lambda: LocalMapConvolution(2),
        "`constraint` must be one of ... Received: 'rows'": lambda: LocalMapConvolution(3, "rows"),
        "`conv_start` must be one of ... Received: 'half'": lambda: kvl.PositionalAttention(
            4, conv_start="half"
        ),
        "`temperature` must be a number in (0, inf). Received: 0": lambda: kvl.Temperature(0),
        "`input_shape` must have sides that are multiples of the patch size 4. Received: "
        "input_shape=(8, 10, 3); the nearest is (8, 12)": lambda: kvl.ConvStem(8, (4,), 4).build(
            IMAGES
        ),
        "`input_shape` ...=(None, 8, 3).": lambda: PatchEmbedding(6, 4).build((None, None, 8, 3)),
        "at least the patch size 4. ...=(3, 8, 3)": (
            lambda: PatchEmbedding(6, 4, 2).build((None, 3, 8, 3))
        ),
        "`residual_scale` must be a number in (0, inf). Received: 0": (
            lambda: Block(Attention(2), MLP(), residual_scale=0)
        ),
        "`attention` must be of type `Layer`. Received: <class": lambda: Block(Attention, MLP()),
        "`num_heads` must divide the width of the tokens, 8. Received: 3": (
            lambda: Attention(3).build((None, 5, 8))
        ),
        # Of any family; what each checks by lines of its own is in tests/models/test_build.py.
        "`height` must be ... Received: None": made("ViT", input_shape=(None, None, 3)),
        "`input_shape` must be that of `input_tensor`, (None, 16, 24, 3). Received: (16, 16, 3)": (
            made("ViT", input_tensor=keras.Input((16, 24, 3)))
        ),
        "`input_tensor` must have a floating dtype...uint8": made(
            "ViT", input_shape=None, input_tensor=keras.Input((16, 16, 3), dtype="uint8")
        ),
        "`classes` must be ... Received: 0": made("ViT", classes=0),
        "`pooling` must be ... Received: 'foo'": made("ViT", pooling="foo"),
        "weights='foo' is neither a file": made("ViT", weights="foo"),
        "`residual_dtype` must be one of ... Received: 'half'": made("ViT", residual_dtype="half"),
        # Of one family.
        "`class_token_at` must be from 0 to depth=3. Received: 4": made("CaiT", class_token_at=4),
        "`class_token_at` must be ... below with class_depth=0... Received: None": made(
            "CaiT", class_depth=0
        ),
        "a class token: there are none for block 1. Received: 'SharedAttention'": (
            made("CaiT", class_token_at=1, attention=SHARED_LATE)
        ),
        "`pooling` ... several tokens. Received: 'avg'": made(
            "ViT", distillation_token=True, pooling="avg"
        ),
        "`head_size` must be a multiple of 4 ... Received: 6": (made("RotaryViT", dim=12)),
        "`num_heads` must be a square...Received: 2": made("ConViT", num_heads=2),
        "`local_depth` must be at most depth=3. Received: 4": made("ConViT", local_depth=4),
        "`re_attention_depth` must be at most depth=2. Received: 3": made(
            "DeepViT", re_attention_depth=3
        ),
        "`shared_depth` must be below depth=2. Received: 2": made("DeepViT", shared_depth=2),
        "`reduction` and `constraint` must be left out ... (True, 'spatial')": (
            made("RefinedViT", constraint="spatial")
        ),
        "`blocks` must be indices ... Received: [0, 2]": made("CBViT", blocks=[0, 2]),
        "`num_heads` must divide ... Received: 3": made("PiT", num_heads=(3, 4)),
        "`pooling` must be 'avg' or 'max'... Received: 'token'": made("Mixer", pooling="token"),
        "there is no pooling by attention. Received: 'attention'": made(
            "CaiT", pooling="attention"
        ),
        "`class_names` must be a list ... Received: {0: 'cat'": (
            lambda: setattr(FAMILIES["ViT"](), "class_names", {0: "cat"})
        ),
        "No model is named 'CaiT_S25'. ...'CaiT_S24'": lambda: kv.create_model("CaiT_S25"),
        # Losses and labels of several heads
        "must have 'head'": training({"head_dist": CLASS}, loss=SPARSE),
        "['aux_head', 'head']": training({"head": CLASS, "aux_head": CLASS}, loss=SPARSE),
        "crossentropy": training(CLASS, loss="crossentropy"),
        "PerHead": training(CLASS, loss=[SPARSE, SPARSE]),
        # Images
        "0..255, or floats in 0..1. Received: float32 in -1.0": prepared(PIXELS - np.float32(1)),
        "Received: bool": prepared(PIXELS > 9),
        "Received: int32 in": prepared(PIXELS.astype("int32") * 2),
        # kv.features
        "patch size 8. Received: ...(30, 16, 3); the nearest is (32, 16)": (
            features("ViT", size=(30, 16))
        ),
        "`size` must be (16, 16): ... depends on it": features("Mixer", size=(24, 24)),
        "`schedule` must be one of ... Received: 'cosine'": (
            lambda: FAMILIES["ViT"]().set_drop_path(0.1, "cosine")
        ),
        "`layers` must be distinct. Received: 'patch_embed' twice": (
            lambda: kv.models.Chain(2 * FAMILIES["ViT"]().layers[:1], (16, 16, 3))
        ),
        # kv.as_chain
        "must be a line of layers": as_chain(
            lambda a, b: keras.Model([a, b], keras.layers.Add()([a, b]))
        ),
        "must have the output of its last layer": as_chain(
            lambda a, b: keras.Model(a, [a, keras.layers.Dense(1)(a)])
        ),
    },
    TypeError: {
        "ViT(): missing a required argument: 'depth'": lambda: kv.ViT(8),
        "ViT()...'color'": lambda: kv.ViT_Ti(color=1),
        "ViT_Ti(): too many positional arguments": lambda: kv.ViT_Ti(*range(10)),
    },
}
