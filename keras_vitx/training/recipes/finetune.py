"""Fine-tune a checkpoint on a few thousand images or more.

keras-vitx train CaiT_Mini fashion_mnist --weights cifar10 --recipe finetune
"""

from keras_vitx.training.recipe import Recipe

RECIPE = Recipe(name="finetune")
