"""Analysis: traces, measures and figures. Robustness: fractions, models that can't be attacked."""

import keras
import numpy as np
from harness import FAMILIES, numbers

import keras_vitx as kv
from keras_vitx import analysis
from keras_vitx.analysis import attribute, class_attention, measure, trace
from keras_vitx.robustness import FGSM, Occlusion

BACKEND_FREE = True
IMAGES, TOKENS = numbers((2, 16, 16, 3)), numbers((4, 5, 7))
MAPS = np.full((2, 3, 6, 6), 1 / 6, "float32")
CaiT, ViT = FAMILIES["CaiT"], FAMILIES["ViT"]


def pooled():
    return CaiT(class_depth=0, pooling="avg")


ERRORS = {
    ValueError: {
        "no block 'block_1'...mean 'blocks_1'": lambda: trace(ViT(), IMAGES, ["block_1"]),
        "no class token": lambda: class_attention(pooled(), IMAGES),
        "needs gates (ConViT...'mine'": lambda: measure(ViT(name="mine"), IMAGES, "gates"),
        "needs a class token": lambda: measure(pooled(), IMAGES, "class_attention"),
        "one of 'softmax', 'values', or None": lambda: measure(ViT(), IMAGES, maps="both"),
        "at least two images": lambda: measure(ViT(), IMAGES[:1], "normalized_cka"),
        "must have attention": lambda: attribute(FAMILIES["Mixer"](), IMAGES, "rollout"),
        "a classifier": lambda: attribute(ViT(include_top=False), IMAGES),
        "at most ... MB...`blocks`...`heads`": lambda empty: analysis.explore(
            ViT(), np.zeros((2, 16, 16, 3), "uint8"), empty / "page.html", limit=0.001
        ),
        "`mode` must be ... Received: 'all'": lambda: analysis.plot_class_attention(
            CaiT(), IMAGES, "a.png", mode="all"
        ),
        "`fraction` must be a number in [0, 1]. Received: 1.5": lambda: Occlusion(CaiT(), 1.5),
        "input of shape": lambda: FGSM(keras.Sequential([keras.Input((4,))]), 0.1),
        "one class per image": lambda: FGSM(CaiT(classifier_activation="sigmoid"), 0.1),
        "`source` must": lambda: kv.evaluate(CaiT(), iter([]), perturb=lambda *_: _),
    },
}
