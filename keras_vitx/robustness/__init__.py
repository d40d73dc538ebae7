"""Accuracy on perturbed images: occlusion, noise, blur and adversarial attacks.

Each perturbation is created from a model and a strength, and passed to `evaluate`:
`keras_vitx.evaluate(model, source, perturb=FGSM(model, 1 / 255))`.
"""

from keras_vitx.robustness.curve import curve
from keras_vitx.robustness.perturbations import (
    FGSM,
    PGD,
    GaussianBlur,
    GaussianNoise,
    Occlusion,
    ShotNoise,
)

__all__ = ["FGSM", "PGD", "GaussianBlur", "GaussianNoise", "Occlusion", "ShotNoise", "curve"]
