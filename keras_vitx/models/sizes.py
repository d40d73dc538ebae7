"""Every size, one per line, with the numbers from the tables of its paper.

Each name is a public function; `keras_vitx` and `keras_vitx.models` export the names of
this file. Rates of stochastic depth are those with which the papers train.
"""

from keras_vitx.models.beit import BEiT
from keras_vitx.models.build import variant as _variant
from keras_vitx.models.cait import CaiT
from keras_vitx.models.cb_vit import CBViT
from keras_vitx.models.convit import ConViT
from keras_vitx.models.deepvit import DeepViT
from keras_vitx.models.mixer import Mixer
from keras_vitx.models.pit import PiT
from keras_vitx.models.refined_vit import RefinedViT
from keras_vitx.models.rotary_vit import RotaryViT
from keras_vitx.models.vit import ViT
from keras_vitx.preprocessing import IMAGENET_INCEPTION as _INCEPTION
from keras_vitx.weights.catalog import OPENAI_CLIP as _CLIP

# fmt: off
# DeiT, Table 1.
ViT_Ti = _variant("ViT_Ti", ViT, dim=192, depth=12, num_heads=3, drop_path=0.1)
ViT_S = _variant("ViT_S", ViT, dim=384, depth=12, num_heads=6, drop_path=0.1)
ViT_B = _variant("ViT_B", ViT, dim=768, depth=12, num_heads=12, drop_path=0.1)
# ConViT, Table 1: "DeiT+", as wide as ConViT+.
ViT_Ti_Plus = _variant("ViT_Ti_Plus", ViT, dim=256, depth=12, num_heads=4, drop_path=0.1)
ViT_S_Plus = _variant("ViT_S_Plus", ViT, dim=576, depth=12, num_heads=9, drop_path=0.1)
ViT_B_Plus = _variant("ViT_B_Plus", ViT, dim=1024, depth=12, num_heads=16, drop_path=0.1)
# Baselines of DeepViT, Table 2. The paper gives no rate of stochastic depth; all released
# recipes use 0.2.
ViT_16B = _variant("ViT_16B", ViT, dim=384, depth=16, num_heads=12, mlp_ratio=3.0, drop_path=0.2)
ViT_24B = _variant("ViT_24B", ViT, dim=384, depth=24, num_heads=12, mlp_ratio=3.0, drop_path=0.2)
ViT_32B = _variant("ViT_32B", ViT, dim=384, depth=32, num_heads=12, mlp_ratio=3.0, drop_path=0.2)
# DeiT III: widths as DeiT's; LayerScale and stochastic depth as released (M's rate is not).
_DEIT3 = dict(depth=12, layer_scale=1e-4, class_position=False)
DeiT3_S = _variant("DeiT3_S", ViT, dim=384, num_heads=6, drop_path=0.05, **_DEIT3)
DeiT3_M = _variant("DeiT3_M", ViT, dim=512, num_heads=8, drop_path=0.1, **_DEIT3)
DeiT3_B = _variant("DeiT3_B", ViT, dim=768, num_heads=12, drop_path=0.2, **_DEIT3)
# DINOv2, Table 17, without and with registers. Its checkpoints have no classifier.
_DINOV2 = dict(input_shape=(518, 518, 3), patch_size=14, layer_scale=1e-5, crop_ratio=1.0)
_REG = dict(register_tokens=4, class_position=False, **_DINOV2)
DINOv2_S = _variant("DINOv2_S", ViT, dim=384, depth=12, num_heads=6, **_DINOV2)
DINOv2_B = _variant("DINOv2_B", ViT, dim=768, depth=12, num_heads=12, **_DINOV2)
DINOv2_L = _variant("DINOv2_L", ViT, dim=1024, depth=24, num_heads=16, **_DINOV2)
DINOv2_S_Reg = _variant("DINOv2_S_Reg", ViT, dim=384, depth=12, num_heads=6, **_REG)
DINOv2_B_Reg = _variant("DINOv2_B_Reg", ViT, dim=768, depth=12, num_heads=12, **_REG)
DINOv2_L_Reg = _variant("DINOv2_L_Reg", ViT, dim=1024, depth=24, num_heads=16, **_REG)
# SigLIP 2, Section 3; GAP: without its pooling. The activations of SO400M and of L at 512 are timm's.
_256 = dict(input_shape=(256, 256, 3))
_GAP = dict(class_token=False, preprocessing=_INCEPTION)
_SIGLIP = dict(attention_pooling=True, **_GAP)
_SO400M = dict(dim=1152, depth=27, num_heads=16, mlp_ratio=3.7362)
_SO400M_16 = dict(activation="gelu_tanh", **_SO400M, **_256)
SigLIP2_B = _variant("SigLIP2_B", ViT, dim=768, depth=12, num_heads=12, **_SIGLIP)
SigLIP2_L = _variant("SigLIP2_L", ViT, dim=1024, depth=24, num_heads=16, **_SIGLIP, **_256)
SigLIP2_L_512 = _variant("SigLIP2_L_512", ViT, dim=1024, depth=24, num_heads=16, activation="gelu_tanh", input_shape=(512, 512, 3), **_SIGLIP)
SigLIP2_SO400M = _variant("SigLIP2_SO400M", ViT, patch_size=14, **_SO400M, **_SIGLIP)
SigLIP2_SO400M_16 = _variant("SigLIP2_SO400M_16", ViT, **_SO400M_16, **_SIGLIP)
SigLIP2_B_GAP = _variant("SigLIP2_B_GAP", ViT, dim=768, depth=12, num_heads=12, **_GAP)
SigLIP2_L_GAP = _variant("SigLIP2_L_GAP", ViT, dim=1024, depth=24, num_heads=16, **_GAP, **_256)
SigLIP2_L_512_GAP = _variant("SigLIP2_L_512_GAP", ViT, dim=1024, depth=24, num_heads=16, activation="gelu_tanh", input_shape=(512, 512, 3), **_GAP)
SigLIP2_SO400M_GAP = _variant("SigLIP2_SO400M_GAP", ViT, patch_size=14, **_SO400M, **_GAP)
SigLIP2_SO400M_16_GAP = _variant("SigLIP2_SO400M_16_GAP", ViT, **_SO400M_16, **_GAP)
# CLIP, Table 20, with OpenAI's GELU; files of LAION and DataComp have `activation="gelu"`.
_TOWER = dict(activation="quick_gelu", pre_norm=True, patch_bias=False, epsilon=1e-5, preprocessing=_CLIP)
CLIP_B_32 = _variant("CLIP_B_32", ViT, dim=768, depth=12, num_heads=12, patch_size=32, **_TOWER)
CLIP_B = _variant("CLIP_B", ViT, dim=768, depth=12, num_heads=12, **_TOWER)
CLIP_L = _variant("CLIP_L", ViT, dim=1024, depth=24, num_heads=16, patch_size=14, **_TOWER)

# RoPE-ViT, Section 4.1. Stochastic depth as in the released commands for 400 epochs.
_S, _B = dict(dim=384, depth=12, num_heads=6), dict(dim=768, depth=12, num_heads=12)
_L = dict(dim=1024, depth=24, num_heads=16)
_AXIAL, _MIXED = dict(rotary=dict(order="xy")), dict(rotary=dict(order="xy", learned=True, temperature=10.0))
_APE = dict(positions="patches")
RoPEViT_S = _variant("RoPEViT_S", RotaryViT, **_S, **_AXIAL)
RoPEViT_B = _variant("RoPEViT_B", RotaryViT, **_B, **_AXIAL, drop_path=0.1)
RoPEViT_L = _variant("RoPEViT_L", RotaryViT, **_L, **_AXIAL, drop_path=0.4)
RoPEViT_S_APE = _variant("RoPEViT_S_APE", RotaryViT, **_S, **_AXIAL, **_APE)
RoPEViT_B_APE = _variant("RoPEViT_B_APE", RotaryViT, **_B, **_AXIAL, **_APE, drop_path=0.1)
RoPEViT_L_APE = _variant("RoPEViT_L_APE", RotaryViT, **_L, **_AXIAL, **_APE, drop_path=0.4)
RoPEViT_S_Mixed = _variant("RoPEViT_S_Mixed", RotaryViT, **_S, **_MIXED)
RoPEViT_B_Mixed = _variant("RoPEViT_B_Mixed", RotaryViT, **_B, **_MIXED, drop_path=0.1)
RoPEViT_L_Mixed = _variant("RoPEViT_L_Mixed", RotaryViT, **_L, **_MIXED, drop_path=0.4)
RoPEViT_S_Mixed_APE = _variant("RoPEViT_S_Mixed_APE", RotaryViT, **_S, **_MIXED, **_APE)
RoPEViT_B_Mixed_APE = _variant("RoPEViT_B_Mixed_APE", RotaryViT, **_B, **_MIXED, **_APE, drop_path=0.1)
RoPEViT_L_Mixed_APE = _variant("RoPEViT_L_Mixed_APE", RotaryViT, **_L, **_MIXED, **_APE, drop_path=0.4)
# DINOv3, Section 3.2 and Table 13. Its checkpoints have no classifier.
_DINOV3 = dict(rotary=dict(halves=True, centered=True), qkv_bias=False, register_tokens=4, epsilon=1e-5, crop_ratio=1.0, **_256)
DINOv3_S = _variant("DINOv3_S", RotaryViT, **_S, **_DINOV3)
DINOv3_S_Plus = _variant("DINOv3_S_Plus", RotaryViT, **_S, gated_mlp=True, **_DINOV3)
DINOv3_B = _variant("DINOv3_B", RotaryViT, **_B, **_DINOV3)
DINOv3_L = _variant("DINOv3_L", RotaryViT, **_L, **_DINOV3)
# EVA-02, Table 1. Positions are counted in the grid of 224 x 224 pixels.
_EVA = dict(rotary=dict(temperature=1e4, reference_grid=(16, 16)), positions="tokens", mean_pooling=True, gated_mlp=True, qkv_bias="qv", layer_scale=None, mlp_ratio=8 / 3, patch_size=14, preprocessing=_CLIP)
EVA02_Ti = _variant("EVA02_Ti", RotaryViT, dim=192, depth=12, num_heads=3, **_EVA)
EVA02_S = _variant("EVA02_S", RotaryViT, **_S, **_EVA)
EVA02_B = _variant("EVA02_B", RotaryViT, **_B, mlp_norm=True, **_EVA)
EVA02_L = _variant("EVA02_L", RotaryViT, **_L, mlp_norm=True, **_EVA)

# BEiT, Section 2.3; v2, Section 3.1, starts LayerScale at 1e-5, as does BEiT's L.
BEiT_B = _variant("BEiT_B", BEiT, dim=768, depth=12, num_heads=12, mean_pooling=True, drop_path=0.1)
BEiT_L = _variant("BEiT_L", BEiT, dim=1024, depth=24, num_heads=16, layer_scale=1e-5, mean_pooling=True, drop_path=0.2)

# CaiT. Width, depth and heads: Table 3. LayerScale and stochastic depth: Table 4 (the
# released code starts XXS36 at 1e-5).
CaiT_XXS24 = _variant("CaiT_XXS24", CaiT, dim=192, depth=24, num_heads=4, layer_scale=1e-5, drop_path=0.05)
CaiT_XXS36 = _variant("CaiT_XXS36", CaiT, dim=192, depth=36, num_heads=4, layer_scale=1e-6, drop_path=0.1)
CaiT_XS24 = _variant("CaiT_XS24", CaiT, dim=288, depth=24, num_heads=6, layer_scale=1e-5, drop_path=0.05)
CaiT_XS36 = _variant("CaiT_XS36", CaiT, dim=288, depth=36, num_heads=6, layer_scale=1e-6, drop_path=0.1)
CaiT_S24 = _variant("CaiT_S24", CaiT, dim=384, depth=24, num_heads=8, layer_scale=1e-5, drop_path=0.1)
CaiT_S36 = _variant("CaiT_S36", CaiT, dim=384, depth=36, num_heads=8, layer_scale=1e-6, drop_path=0.2)
CaiT_S48 = _variant("CaiT_S48", CaiT, dim=384, depth=48, num_heads=8, layer_scale=1e-6, drop_path=0.3)
CaiT_M24 = _variant("CaiT_M24", CaiT, dim=768, depth=24, num_heads=16, layer_scale=1e-5, drop_path=0.2)
CaiT_M36 = _variant("CaiT_M36", CaiT, dim=768, depth=36, num_heads=16, layer_scale=1e-6, drop_path=0.3)
CaiT_M48 = _variant("CaiT_M48", CaiT, dim=768, depth=48, num_heads=16, layer_scale=1e-6, drop_path=0.4)

# ConViT, Table 1.
ConViT_Ti = _variant("ConViT_Ti", ConViT, dim=192, depth=12, num_heads=4, drop_path=0.1)
ConViT_S = _variant("ConViT_S", ConViT, dim=432, depth=12, num_heads=9, drop_path=0.1)
ConViT_B = _variant("ConViT_B", ConViT, dim=768, depth=12, num_heads=16, drop_path=0.1)
ConViT_Ti_Plus = _variant("ConViT_Ti_Plus", ConViT, dim=256, depth=12, num_heads=4, drop_path=0.1)
ConViT_S_Plus = _variant("ConViT_S_Plus", ConViT, dim=576, depth=12, num_heads=9, drop_path=0.1)
ConViT_B_Plus = _variant("ConViT_B_Plus", ConViT, dim=1024, depth=12, num_heads=16, drop_path=0.1)

# DeepViT, Tables 2 and 7. L is 408 wide in the paper's text, but 420 in Table 7 and the code.
# The paper gives no rate of stochastic depth; all released recipes use 0.2. At 384 x 384, L is
# evaluated with a crop ratio of 1: model.preprocessing = model.preprocessing.replace(crop_ratio=1.0).
DeepViT_16B = _variant("DeepViT_16B", DeepViT, dim=384, depth=16, num_heads=12, drop_path=0.2)
DeepViT_24B = _variant("DeepViT_24B", DeepViT, dim=384, depth=24, num_heads=12, drop_path=0.2)
DeepViT_32B = _variant("DeepViT_32B", DeepViT, dim=384, depth=32, num_heads=12, drop_path=0.2)
DeepViT_S = _variant("DeepViT_S", DeepViT, dim=396, depth=16, num_heads=12, re_attention_depth=5, conv_stem=True, residual_scale=0.5, map_scale="head", drop_path=0.2)
DeepViT_L = _variant("DeepViT_L", DeepViT, dim=420, depth=32, num_heads=12, re_attention_depth=12, conv_stem=True, residual_scale=0.5, drop_path=0.2)

# Refiner, Table 10. Rates of stochastic depth: 0.1 * depth / 12, as in the text. (The released
# code has 0.1 for S and 0.2 for M; with token labels 0.2 for S, 0.25 for M and L.) The crop
# ratios are the released ones; 1.13 is the receptive field calibration of Section 4.4.
RefinedViT_Base = _variant("RefinedViT_Base", RefinedViT, dim=768, depth=12, num_heads=12, mlp_ratio=4.0, drop_path=0.1)
RefinedViT_S = _variant("RefinedViT_S", RefinedViT, dim=384, depth=16, num_heads=12, drop_path=0.1333)
RefinedViT_M = _variant("RefinedViT_M", RefinedViT, dim=420, depth=32, num_heads=12, drop_path=0.2667, crop_ratio=1.0)
RefinedViT_L = _variant("RefinedViT_L", RefinedViT, dim=512, depth=32, num_heads=16, drop_path=0.2667, crop_ratio=1.13)

# Context Broadcasting, Sections 2.2 and 3.2, Table 11.
CBViT_Ti = _variant("CBViT_Ti", CBViT, dim=192, depth=12, num_heads=3, drop_path=0.1)
CBViT_S = _variant("CBViT_S", CBViT, dim=384, depth=12, num_heads=6, drop_path=0.1)
CBViT_B = _variant("CBViT_B", CBViT, dim=768, depth=12, num_heads=12, drop_path=0.1)
CBSViT_Ti = _variant("CBSViT_Ti", CBViT, dim=192, depth=12, num_heads=3, scaled=True, drop_path=0.1)
CBSViT_S = _variant("CBSViT_S", CBViT, dim=384, depth=12, num_heads=6, scaled=True, drop_path=0.1)
CBSViT_B = _variant("CBSViT_B", CBViT, dim=768, depth=12, num_heads=12, scaled=True, drop_path=0.1)
PiT_B = _variant("PiT_B", PiT, dims=(256, 512, 1024), depths=(3, 6, 4), num_heads=(4, 8, 16), drop_path=0.1)
CBPiT_B = _variant("CBPiT_B", PiT, dims=(256, 512, 1024), depths=(3, 6, 4), num_heads=(4, 8, 16), context_broadcast=True, drop_path=0.1)
Mixer_S16 = _variant("Mixer_S16", Mixer, dim=512, depth=8, drop_path=0.1)
Mixer_B16 = _variant("Mixer_B16", Mixer, dim=768, depth=12, drop_path=0.1)
CBMixer_S16 = _variant("CBMixer_S16", Mixer, dim=512, depth=8, context_broadcast=True, drop_path=0.1)

# Not in the papers: small networks of about one size for 32 x 32 images. A shipped checkpoint is
# of such a size.
_MINI = dict(input_shape=(32, 32, 3), classes=10, dim=96, num_heads=4, patch_size=4)
ViT_Mini = _variant("ViT_Mini", ViT, depth=6, **_MINI)
CaiT_Mini = _variant("CaiT_Mini", CaiT, depth=4, layer_scale=0.1, **_MINI)
ConViT_Mini = _variant("ConViT_Mini", ConViT, depth=6, local_depth=5, **_MINI)
DeepViT_Mini = _variant("DeepViT_Mini", DeepViT, depth=6, mlp_ratio=4.0, **_MINI)
RefinedViT_Mini = _variant("RefinedViT_Mini", RefinedViT, depth=6, mlp_ratio=4.0, layer_scale=0.1, conv_stem=False, **_MINI)
CBViT_Mini = _variant("CBViT_Mini", CBViT, depth=6, **_MINI)
