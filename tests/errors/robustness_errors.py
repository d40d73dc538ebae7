"""Robustness: fractions, and models that can't be attacked."""

import keras
from harness import FAMILIES

import keras_vitx as kv
from keras_vitx.robustness import FGSM, Occlusion

BACKEND_FREE = True
CaiT = FAMILIES["CaiT"]


ERRORS = {
    ValueError: {
        "`fraction` must be a number in [0, 1]. Received: 1.5": lambda: Occlusion(CaiT(), 1.5),
        "input of shape": lambda: FGSM(keras.Sequential([keras.Input((4,))]), 0.1),
        "one class per image": lambda: FGSM(CaiT(classifier_activation="sigmoid"), 0.1),
        "`source` must": lambda: kv.evaluate(CaiT(), iter([]), perturb=lambda *_: _),
    }
}
