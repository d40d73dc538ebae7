"""Zero-shot classification with a changed CLIP: our image tower, Transformers' text model.

    KERAS_BACKEND=torch python examples/zero_shot.py [REPOSITORY] [IMAGES]

REPOSITORY is Transformers' CLIP with patches of 32, by default OpenAI's; IMAGES, a directory with
a subdirectory per class, by default CIFAR-10. Prints the accuracy of CLIP, and of CLIP with
re-attention put in by a start that changes nothing. Needs transformers, torch and the hub.
"""

import sys

import keras_vitx as kv
from keras_vitx.layers import Attention, HeadMixing

import keras
import numpy as np
import torch


def class_embeddings(theirs, tokenize, names, template="a photo of a {}."):
    """Return a unit vector per class, `(classes, dim)`, of the text model of a CLIP or SigLIP."""
    tokens = tokenize([template.format(name.replace("_", " ")) for name in names])
    with torch.no_grad():
        vectors = theirs.get_text_features(**tokens)
    vectors = getattr(vectors, "pooler_output", vectors).numpy()
    return vectors / (vectors**2).sum(axis=1, keepdims=True) ** 0.5


def zero_shot(tower, theirs, texts, names=None):
    """Return a classifier: a tower's projected, normalized vector times those of the classes.

    Args:
        tower: A tower without a classifier, with its pooling.
        theirs: The CLIP or SigLIP of Transformers, for its projection, scale and bias.
        texts, names: Unit vectors of the classes, `(classes, dim)`, and their names.
    """
    state = {name: value.numpy() for name, value in theirs.state_dict().items()}
    projection, bias = state.get("visual_projection.weight"), state.get("logit_bias", np.zeros(1))
    outputs = tower.output
    if projection is not None:
        project = keras.layers.Dense(len(projection), use_bias=False, name="projection")
        outputs = project(outputs)
        project.set_weights([projection.T])
    outputs = keras.layers.UnitNormalization(name="unit")(outputs)
    head = keras.layers.Dense(len(texts), name="head")
    outputs = head(outputs)
    head.set_weights([np.exp(state["logit_scale"]) * texts.T, np.repeat(bias, len(texts))])
    outputs = keras.layers.Activation("softmax", name="prediction")(outputs)
    model = kv.models.as_chain(keras.Model(tower.input, outputs))
    model.preprocessing, model.class_names = tower.preprocessing, names
    return model


def re_attention(num_heads):
    """Return what makes attention whose heads are mixed, at first by the identity."""
    mix = {"kernel_initializer": "identity", "name": "mix"}
    return lambda index: Attention(num_heads, on_weights=[HeadMixing(**mix)])


def main(repository="openai/clip-vit-base-patch32", source="cifar10"):
    """Print both accuracies."""
    from transformers import AutoTokenizer, CLIPModel

    theirs, tokenizer = (
        CLIPModel.from_pretrained(repository),
        AutoTokenizer.from_pretrained(repository),
    )
    data = kv.data.load_dataset(source)
    texts = class_embeddings(
        theirs, lambda text: tokenizer(text, padding=True, return_tensors="pt"), data.class_names
    )
    given = {"include_top": False, "pooling": "token", "weights": f"hf://{repository}"}
    changed = {"attention": re_attention(12), "strict": False}
    for name, change in {"CLIP": {}, "CLIP with re-attention": changed}.items():
        model = zero_shot(kv.CLIP_B_32(**given, **change), theirs, texts, data.class_names)
        print(f"{name}: {kv.evaluate(model, data)['accuracy']:.1%}")


if __name__ == "__main__":
    main(*sys.argv[1:])
