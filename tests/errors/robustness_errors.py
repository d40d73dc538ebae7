"""Robustness: strengths, models that can't be attacked, and curves."""

import keras
from harness import FAMILIES

import keras_vitx as kv
from keras_vitx.robustness import FGSM, PGD, GaussianNoise, Occlusion, curve

BACKEND_FREE = True
CaiT = FAMILIES["CaiT"]


def curved(kind, strengths, **options):
    evaluate = {"evaluate": lambda *_, **__: {"mean_iou": 0.5, "images": 3}}
    return curve(CaiT(), None, kind, strengths, **evaluate, **options)


ERRORS = {
    ValueError: {
        "`fraction` must be a number in [0, 1]. Received: 1.5": lambda: Occlusion(CaiT(), 1.5),
        "`sigma`": lambda: GaussianNoise(CaiT(), -1),
        "`epsilon`...'1/255'": lambda: FGSM(CaiT(), "1/255"),
        "`steps`": lambda: PGD(CaiT(), 0.1, steps=0),
        "input of shape": lambda: FGSM(keras.Sequential([keras.Input((4,))]), 0.1),
        "sigmoid": lambda: FGSM(CaiT(classifier_activation="sigmoid"), 0.1),
        "'fgsm', ... Received: 'fsgm'": lambda: curved("fsgm", [0]),
        "`runs`": lambda: curved("noise", [1], runs=11),
        "`strengths` must be a list": lambda: curved("noise", 1),
        "`measure` must be one of mean_iou, images...'accuracy'": lambda: curved("noise", [5.0]),
        "`source` must": lambda: kv.evaluate(CaiT(), iter([]), perturb=lambda *_: _),
    }
}
