"""What a backend does faster, or must do otherwise; `keras_vitx.layers.ops` makes the choice.

A kernel stays if it makes a training step or the inference of one of the five families at least 5 %
faster at 224 x 224, or an accelerator needs it: see docs/speed.md, "Kernels".
"""
