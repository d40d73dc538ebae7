"""Accuracy on perturbed images: occlusion, noise, blur and adversarial attacks.

Each perturbation is made from a model and a strength, and is given to `evaluate`:
`keras_vitx.evaluate(model, source, perturb=FGSM(model, 1 / 255))`.
"""

from keras_vitx.robustness.attacks import FGSM, PGD
from keras_vitx.robustness.corruptions import GaussianBlur, GaussianNoise, Occlusion, ShotNoise
from keras_vitx.robustness.curve import curve

__all__ = [
    "FGSM",
    "PGD",
    "GaussianBlur",
    "GaussianNoise",
    "Occlusion",
    "ShotNoise",
    "curve",
]
