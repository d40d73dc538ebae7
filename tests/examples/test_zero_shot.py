"""examples/zero_shot.py: logits of Transformers' own CLIP and SigLIP, with random weights."""

import importlib.util

import numpy as np
import pytest
from harness import ROOT, array, close

import keras_vitx as kv

pytestmark = pytest.mark.backend_free
SIZES = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3}
SIZES |= {"intermediate_size": 96}
OURS = {"dim": 24, "depth": 2, "num_heads": 3, "patch_size": 8, "input_shape": (32, 32, 3)}
KINDS = {
    "CLIPModel": {"pooling": "token", "activation": "quick_gelu", "pre_norm": True}
    | {"patch_bias": False, "epsilon": 1e-5},
    "SiglipModel": {"pooling": "attention", "class_token": False, "attention_pooling": True}
    | {"activation": "gelu_tanh"},
}


@pytest.mark.parametrize("kind", KINDS)
def test_zero_shot(kind, tmp_path, timm):
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    spec = importlib.util.spec_from_file_location("zero_shot", ROOT / "examples/zero_shot.py")
    program = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(program)

    torch.manual_seed(0)
    make = getattr(transformers, kind)
    text = SIZES | {"vocab_size": 99, "max_position_embeddings": 7, "projection_size": 24}
    text |= {"bos_token_id": 1, "eos_token_id": 2}
    vision = SIZES | {"image_size": 32, "patch_size": 8}
    vision |= {"layer_norm_eps": 1e-6} if kind == "SiglipModel" else {}
    extra = {"projection_dim": 16} if kind == "CLIPModel" else {}
    theirs = make(make.config_class(text_config=text, vision_config=vision, **extra)).eval()
    with torch.no_grad():
        for value in theirs.parameters():
            value.add_(0.2 * torch.randn_like(value))
        theirs.logit_scale.fill_(2.0)
    theirs.save_pretrained(tmp_path)
    given = OURS | KINDS[kind] | {"weights": tmp_path / "model.safetensors", "include_top": False}
    pixels = np.random.default_rng(0).integers(0, 256, (4, 32, 32, 3), "uint8")
    images = kv.preprocess_input(pixels, kv.ViT(**given))
    tokens = {"input_ids": torch.randint(3, 90, (5, 7))}
    with torch.no_grad():
        channels_first = torch.tensor(images).permute(0, 3, 1, 2)
        expected = theirs(**tokens, pixel_values=channels_first).logits_per_image
    names = ["cat", "dog", "red_fox", "owl", "cow"]
    said = []
    texts = program.class_embeddings(theirs, lambda text: said.extend(text) or tokens, names)
    assert said[2] == "a photo of a red fox."
    for change in ({}, {"attention": program.re_attention(3), "strict": False}):
        model = program.zero_shot(kv.ViT(**given, **change), theirs, texts, names)
        close(array(model(images)), expected.softmax(dim=-1).numpy())
    labels = np.arange(4)
    right = (expected.argmax(dim=-1).numpy() == labels).mean()
    assert kv.evaluate(model, (pixels, labels), batch_size=2)["accuracy"] == right
