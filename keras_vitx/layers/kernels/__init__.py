"""What a backend does faster, or must do otherwise; `keras_vitx.layers.ops` makes the choice.

A kernel stays if it makes a training step or the inference of one of the five families at least
5 % faster at 224 x 224, or an accelerator needs it. What each gains, what dropping it would cost
and how that was measured is in docs/speed.md, "Kernels".
"""
