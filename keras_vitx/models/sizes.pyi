# Written by `make sizes` from the signatures at run time; a test compares them.
# fmt: off
# ruff: noqa: E501, UP007
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Literal, Protocol, Union

import keras

from keras_vitx.models.chain import Chain

def ViT(dim: int, depth: int, num_heads: int, mlp_ratio: float = 4.0, distillation_token: bool = False, patch_size: int = 16, layer_scale: float | keras.initializers.Initializer | None = None, scalar_scale: bool = False, register_tokens: int = 0, class_position: bool | None = True, class_token: bool = True, activation: str | Callable[..., Any] = 'gelu', attention_pooling: bool | int = False, gated_mlp: bool = False, qkv_bias: bool | str = True, pre_norm: bool = False, patch_bias: bool = True, last_norm: bool = True, mean_pooling: bool = False, epsilon: float = 1e-06, mlp_norm: bool = False, heads_norm: bool = False, norm: str = 'layer', patch_norm: bool = False, proj_bias: bool = True, rotary: Mapping[str, Any] | None = None, position_bias: bool = False, post_norm: bool = False, *, drop_path: float | Sequence[float] = 0.0, dropout: float = 0.0, attention: Callable[[int], keras.layers.Layer] | None = None, mlp: Callable[[int], keras.layers.Layer] | None = None, include_top: bool = True, weights: str | os.PathLike | None = None, input_shape: tuple[int, int, int] | None = None, pooling: str | None = None, classes: int = 1000, classifier_activation: str | Callable | keras.layers.Layer | None = 'softmax', include_preprocessing: bool = False, input_tensor: Any = None, name: str | None = None, remat: Union[bool, Literal['products']] = False, residual_dtype: str | None = None, dtype: Any = None, strict: bool = True) -> Chain: ...
class _ViTSize(Protocol):
    def __call__(self, include_top: bool = True, weights: str | os.PathLike | None = None, input_tensor: Any = None, input_shape: tuple[int, int, int] | None = None, pooling: str | None = None, classes: int = ..., classifier_activation: str | Callable | keras.layers.Layer | None = 'softmax', name: str | None = None, include_preprocessing: bool = False, *, dim: int = ..., depth: int = ..., num_heads: int = ..., mlp_ratio: float = ..., distillation_token: bool = ..., patch_size: int = ..., layer_scale: float | keras.initializers.Initializer | None = ..., scalar_scale: bool = ..., register_tokens: int = ..., class_position: bool | None = ..., class_token: bool = ..., activation: str | Callable[..., Any] = ..., attention_pooling: bool | int = ..., gated_mlp: bool = ..., qkv_bias: bool | str = ..., pre_norm: bool = ..., patch_bias: bool = ..., last_norm: bool = ..., mean_pooling: bool = ..., epsilon: float = ..., mlp_norm: bool = ..., heads_norm: bool = ..., norm: str = ..., patch_norm: bool = ..., proj_bias: bool = ..., rotary: Mapping[str, Any] | None = ..., position_bias: bool = ..., post_norm: bool = ..., drop_path: float | Sequence[float] = ..., dropout: float = ..., attention: Callable[[int], keras.layers.Layer] | None = ..., mlp: Callable[[int], keras.layers.Layer] | None = ..., remat: Union[bool, Literal['products']] = ..., residual_dtype: str | None = ..., dtype: Any = ..., strict: bool = ...) -> Chain: ...
ViT_Ti: _ViTSize
ViT_S: _ViTSize
ViT_B: _ViTSize
ViT_Ti_Plus: _ViTSize
ViT_S_Plus: _ViTSize
ViT_B_Plus: _ViTSize
ViT_16B: _ViTSize
ViT_24B: _ViTSize
ViT_32B: _ViTSize
DeiT3_S: _ViTSize
DeiT3_M: _ViTSize
DeiT3_B: _ViTSize
DINOv2_S: _ViTSize
DINOv2_B: _ViTSize
DINOv2_L: _ViTSize
DINOv2_S_Reg: _ViTSize
DINOv2_B_Reg: _ViTSize
DINOv2_L_Reg: _ViTSize
SigLIP2_B: _ViTSize
SigLIP2_L: _ViTSize
SigLIP2_L_512: _ViTSize
SigLIP2_SO400M: _ViTSize
SigLIP2_SO400M_16: _ViTSize
SigLIP2_B_GAP: _ViTSize
SigLIP2_L_GAP: _ViTSize
SigLIP2_L_512_GAP: _ViTSize
SigLIP2_SO400M_GAP: _ViTSize
SigLIP2_SO400M_16_GAP: _ViTSize
CLIP_B_32: _ViTSize
CLIP_B: _ViTSize
CLIP_L: _ViTSize
ViT_Mini: _ViTSize
def BEiT(dim: int, depth: int, num_heads: int, mlp_ratio: float = 4.0, patch_size: int = 16, layer_scale: float | None = 0.1, mean_pooling: bool = False, *, drop_path: float | Sequence[float] = 0.0, dropout: float = 0.0, attention: Callable[[int], keras.layers.Layer] | None = None, mlp: Callable[[int], keras.layers.Layer] | None = None, include_top: bool = True, weights: str | os.PathLike | None = None, input_shape: tuple[int, int, int] | None = None, pooling: str | None = None, classes: int = 1000, classifier_activation: str | Callable | keras.layers.Layer | None = 'softmax', include_preprocessing: bool = False, input_tensor: Any = None, name: str | None = None, remat: Union[bool, Literal['products']] = False, residual_dtype: str | None = None, dtype: Any = None, strict: bool = True) -> Chain: ...
class _BEiTSize(Protocol):
    def __call__(self, include_top: bool = True, weights: str | os.PathLike | None = None, input_tensor: Any = None, input_shape: tuple[int, int, int] | None = None, pooling: str | None = None, classes: int = ..., classifier_activation: str | Callable | keras.layers.Layer | None = 'softmax', name: str | None = None, include_preprocessing: bool = False, *, dim: int = ..., depth: int = ..., num_heads: int = ..., mlp_ratio: float = ..., patch_size: int = ..., layer_scale: float | None = ..., mean_pooling: bool = ..., drop_path: float | Sequence[float] = ..., dropout: float = ..., attention: Callable[[int], keras.layers.Layer] | None = ..., mlp: Callable[[int], keras.layers.Layer] | None = ..., remat: Union[bool, Literal['products']] = ..., residual_dtype: str | None = ..., dtype: Any = ..., strict: bool = ...) -> Chain: ...
BEiT_B: _BEiTSize
BEiT_L: _BEiTSize
def CaiT(dim: int, depth: int, num_heads: int, class_depth: int = 2, mlp_ratio: float = 4.0, layer_scale: float | keras.initializers.Initializer | None = 1e-05, patch_size: int = 16, class_token_at: int | None = None, class_in_keys: bool = True, class_layer_scale: float | keras.initializers.Initializer | str | None = 'same', scalar_scale: bool = False, distillation_token: bool = False, *, drop_path: float | Sequence[float] = 0.0, dropout: float = 0.0, attention: Callable[[int], keras.layers.Layer] | None = None, mlp: Callable[[int], keras.layers.Layer] | None = None, include_top: bool = True, weights: str | os.PathLike | None = None, input_shape: tuple[int, int, int] | None = None, pooling: str | None = None, classes: int = 1000, classifier_activation: str | Callable | keras.layers.Layer | None = 'softmax', include_preprocessing: bool = False, input_tensor: Any = None, name: str | None = None, remat: Union[bool, Literal['products']] = False, residual_dtype: str | None = None, dtype: Any = None, strict: bool = True) -> Chain: ...
class _CaiTSize(Protocol):
    def __call__(self, include_top: bool = True, weights: str | os.PathLike | None = None, input_tensor: Any = None, input_shape: tuple[int, int, int] | None = None, pooling: str | None = None, classes: int = ..., classifier_activation: str | Callable | keras.layers.Layer | None = 'softmax', name: str | None = None, include_preprocessing: bool = False, *, dim: int = ..., depth: int = ..., num_heads: int = ..., class_depth: int = ..., mlp_ratio: float = ..., layer_scale: float | keras.initializers.Initializer | None = ..., patch_size: int = ..., class_token_at: int | None = ..., class_in_keys: bool = ..., class_layer_scale: float | keras.initializers.Initializer | str | None = ..., scalar_scale: bool = ..., distillation_token: bool = ..., drop_path: float | Sequence[float] = ..., dropout: float = ..., attention: Callable[[int], keras.layers.Layer] | None = ..., mlp: Callable[[int], keras.layers.Layer] | None = ..., remat: Union[bool, Literal['products']] = ..., residual_dtype: str | None = ..., dtype: Any = ..., strict: bool = ...) -> Chain: ...
CaiT_XXS24: _CaiTSize
CaiT_XXS36: _CaiTSize
CaiT_XS24: _CaiTSize
CaiT_XS36: _CaiTSize
CaiT_S24: _CaiTSize
CaiT_S36: _CaiTSize
CaiT_S48: _CaiTSize
CaiT_M24: _CaiTSize
CaiT_M36: _CaiTSize
CaiT_M48: _CaiTSize
CaiT_Mini: _CaiTSize
def CBViT(dim: int, depth: int, num_heads: int, mlp_ratio: float = 4.0, position: str = 'end', where: str = 'mlp', scaled: bool = False, blocks: Collection[int] | None = None, patch_size: int = 16, context: str = 'mean', scale: float | keras.initializers.Initializer = 1.0, distillation_token: bool = False, *, drop_path: float | Sequence[float] = 0.0, dropout: float = 0.0, attention: Callable[[int], keras.layers.Layer] | None = None, mlp: Callable[[int], keras.layers.Layer] | None = None, include_top: bool = True, weights: str | os.PathLike | None = None, input_shape: tuple[int, int, int] | None = None, pooling: str | None = None, classes: int = 1000, classifier_activation: str | Callable | keras.layers.Layer | None = 'softmax', include_preprocessing: bool = False, input_tensor: Any = None, name: str | None = None, remat: Union[bool, Literal['products']] = False, residual_dtype: str | None = None, dtype: Any = None, strict: bool = True) -> Chain: ...
class _CBViTSize(Protocol):
    def __call__(self, include_top: bool = True, weights: str | os.PathLike | None = None, input_tensor: Any = None, input_shape: tuple[int, int, int] | None = None, pooling: str | None = None, classes: int = ..., classifier_activation: str | Callable | keras.layers.Layer | None = 'softmax', name: str | None = None, include_preprocessing: bool = False, *, dim: int = ..., depth: int = ..., num_heads: int = ..., mlp_ratio: float = ..., position: str = ..., where: str = ..., scaled: bool = ..., blocks: Collection[int] | None = ..., patch_size: int = ..., context: str = ..., scale: float | keras.initializers.Initializer = ..., distillation_token: bool = ..., drop_path: float | Sequence[float] = ..., dropout: float = ..., attention: Callable[[int], keras.layers.Layer] | None = ..., mlp: Callable[[int], keras.layers.Layer] | None = ..., remat: Union[bool, Literal['products']] = ..., residual_dtype: str | None = ..., dtype: Any = ..., strict: bool = ...) -> Chain: ...
CBViT_Ti: _CBViTSize
CBViT_S: _CBViTSize
CBViT_B: _CBViTSize
CBSViT_Ti: _CBViTSize
CBSViT_S: _CBViTSize
CBSViT_B: _CBViTSize
CBViT_Mini: _CBViTSize
def ConViT(dim: int, depth: int, num_heads: int, local_depth: int | None = None, locality_strength: float = 1.0, mlp_ratio: float = 4.0, patch_size: int = 16, conv_start: bool | str = True, gated: bool = True, initial_gate: float = 1.0, learn_gates: bool = True, frozen_attention: bool = False, *, drop_path: float | Sequence[float] = 0.0, dropout: float = 0.0, attention: Callable[[int], keras.layers.Layer] | None = None, mlp: Callable[[int], keras.layers.Layer] | None = None, include_top: bool = True, weights: str | os.PathLike | None = None, input_shape: tuple[int, int, int] | None = None, pooling: str | None = None, classes: int = 1000, classifier_activation: str | Callable | keras.layers.Layer | None = 'softmax', include_preprocessing: bool = False, input_tensor: Any = None, name: str | None = None, remat: Union[bool, Literal['products']] = False, residual_dtype: str | None = None, dtype: Any = None, strict: bool = True) -> Chain: ...
class _ConViTSize(Protocol):
    def __call__(self, include_top: bool = True, weights: str | os.PathLike | None = None, input_tensor: Any = None, input_shape: tuple[int, int, int] | None = None, pooling: str | None = None, classes: int = ..., classifier_activation: str | Callable | keras.layers.Layer | None = 'softmax', name: str | None = None, include_preprocessing: bool = False, *, dim: int = ..., depth: int = ..., num_heads: int = ..., local_depth: int | None = ..., locality_strength: float = ..., mlp_ratio: float = ..., patch_size: int = ..., conv_start: bool | str = ..., gated: bool = ..., initial_gate: float = ..., learn_gates: bool = ..., frozen_attention: bool = ..., drop_path: float | Sequence[float] = ..., dropout: float = ..., attention: Callable[[int], keras.layers.Layer] | None = ..., mlp: Callable[[int], keras.layers.Layer] | None = ..., remat: Union[bool, Literal['products']] = ..., residual_dtype: str | None = ..., dtype: Any = ..., strict: bool = ...) -> Chain: ...
ConViT_Ti: _ConViTSize
ConViT_S: _ConViTSize
ConViT_B: _ConViTSize
ConViT_Ti_Plus: _ConViTSize
ConViT_S_Plus: _ConViTSize
ConViT_B_Plus: _ConViTSize
ConViT_Mini: _ConViTSize
def DeepViT(dim: int, depth: int, num_heads: int, re_attention_depth: int | None = None, mlp_ratio: float = 3.0, conv_stem: bool = False, residual_scale: float = 1.0, map_scale: float | str = 1.0, normalize_maps: bool = True, patch_size: int = 16, shared_depth: int = 0, similarity: float = 0.0, similarity_depth: int = 0, similarity_over: str = 'heads', *, drop_path: float | Sequence[float] = 0.0, dropout: float = 0.0, attention: Callable[[int], keras.layers.Layer] | None = None, mlp: Callable[[int], keras.layers.Layer] | None = None, include_top: bool = True, weights: str | os.PathLike | None = None, input_shape: tuple[int, int, int] | None = None, pooling: str | None = None, classes: int = 1000, classifier_activation: str | Callable | keras.layers.Layer | None = 'softmax', include_preprocessing: bool = False, input_tensor: Any = None, name: str | None = None, remat: Union[bool, Literal['products']] = False, residual_dtype: str | None = None, dtype: Any = None, strict: bool = True) -> Chain: ...
class _DeepViTSize(Protocol):
    def __call__(self, include_top: bool = True, weights: str | os.PathLike | None = None, input_tensor: Any = None, input_shape: tuple[int, int, int] | None = None, pooling: str | None = None, classes: int = ..., classifier_activation: str | Callable | keras.layers.Layer | None = 'softmax', name: str | None = None, include_preprocessing: bool = False, *, dim: int = ..., depth: int = ..., num_heads: int = ..., re_attention_depth: int | None = ..., mlp_ratio: float = ..., conv_stem: bool = ..., residual_scale: float = ..., map_scale: float | str = ..., normalize_maps: bool = ..., patch_size: int = ..., shared_depth: int = ..., similarity: float = ..., similarity_depth: int = ..., similarity_over: str = ..., drop_path: float | Sequence[float] = ..., dropout: float = ..., attention: Callable[[int], keras.layers.Layer] | None = ..., mlp: Callable[[int], keras.layers.Layer] | None = ..., remat: Union[bool, Literal['products']] = ..., residual_dtype: str | None = ..., dtype: Any = ..., strict: bool = ...) -> Chain: ...
DeepViT_16B: _DeepViTSize
DeepViT_24B: _DeepViTSize
DeepViT_32B: _DeepViTSize
DeepViT_S: _DeepViTSize
DeepViT_L: _DeepViTSize
DeepViT_Mini: _DeepViTSize
def Mixer(dim: int, depth: int, mlp_ratio: tuple[float, float] = (0.5, 4.0), patch_size: int = 16, context_broadcast: bool = False, *, drop_path: float | Sequence[float] = 0.0, dropout: float = 0.0, attention: Callable[[int], keras.layers.Layer] | None = None, mlp: Callable[[int], keras.layers.Layer] | None = None, include_top: bool = True, weights: str | os.PathLike | None = None, input_shape: tuple[int, int, int] | None = None, pooling: str | None = None, classes: int = 1000, classifier_activation: str | Callable | keras.layers.Layer | None = 'softmax', include_preprocessing: bool = False, input_tensor: Any = None, name: str | None = None, remat: Union[bool, Literal['products']] = False, residual_dtype: str | None = None, dtype: Any = None, strict: bool = True) -> Chain: ...
class _MixerSize(Protocol):
    def __call__(self, include_top: bool = True, weights: str | os.PathLike | None = None, input_tensor: Any = None, input_shape: tuple[int, int, int] | None = None, pooling: str | None = None, classes: int = ..., classifier_activation: str | Callable | keras.layers.Layer | None = 'softmax', name: str | None = None, include_preprocessing: bool = False, *, dim: int = ..., depth: int = ..., mlp_ratio: tuple[float, float] = ..., patch_size: int = ..., context_broadcast: bool = ..., drop_path: float | Sequence[float] = ..., dropout: float = ..., attention: Callable[[int], keras.layers.Layer] | None = ..., mlp: Callable[[int], keras.layers.Layer] | None = ..., remat: Union[bool, Literal['products']] = ..., residual_dtype: str | None = ..., dtype: Any = ..., strict: bool = ...) -> Chain: ...
Mixer_S16: _MixerSize
Mixer_B16: _MixerSize
CBMixer_S16: _MixerSize
def PiT(dims: Sequence[int], depths: Sequence[int], num_heads: Sequence[int], mlp_ratio: float = 4.0, patch_size: int = 14, stride: int = 7, distillation_token: bool = False, context_broadcast: bool = False, *, drop_path: float | Sequence[float] = 0.0, dropout: float = 0.0, attention: Callable[[int], keras.layers.Layer] | None = None, mlp: Callable[[int], keras.layers.Layer] | None = None, include_top: bool = True, weights: str | os.PathLike | None = None, input_shape: tuple[int, int, int] | None = None, pooling: str | None = None, classes: int = 1000, classifier_activation: str | Callable | keras.layers.Layer | None = 'softmax', include_preprocessing: bool = False, input_tensor: Any = None, name: str | None = None, remat: Union[bool, Literal['products']] = False, residual_dtype: str | None = None, dtype: Any = None, strict: bool = True) -> Chain: ...
class _PiTSize(Protocol):
    def __call__(self, include_top: bool = True, weights: str | os.PathLike | None = None, input_tensor: Any = None, input_shape: tuple[int, int, int] | None = None, pooling: str | None = None, classes: int = ..., classifier_activation: str | Callable | keras.layers.Layer | None = 'softmax', name: str | None = None, include_preprocessing: bool = False, *, dims: Sequence[int] = ..., depths: Sequence[int] = ..., num_heads: Sequence[int] = ..., mlp_ratio: float = ..., patch_size: int = ..., stride: int = ..., distillation_token: bool = ..., context_broadcast: bool = ..., drop_path: float | Sequence[float] = ..., dropout: float = ..., attention: Callable[[int], keras.layers.Layer] | None = ..., mlp: Callable[[int], keras.layers.Layer] | None = ..., remat: Union[bool, Literal['products']] = ..., residual_dtype: str | None = ..., dtype: Any = ..., strict: bool = ...) -> Chain: ...
PiT_B: _PiTSize
CBPiT_B: _PiTSize
def RefinedViT(dim: int, depth: int, num_heads: int, expansion: int = 3, kernel_size: int = 3, mlp_ratio: float = 3.0, dense_head: bool = False, patch_size: int = 16, refiner: str | None = 'released', shared_depth: int = 1, reduction: bool = True, constraint: str | None = None, residual_scale: float = 0.5, layer_scale: float | None = 1e-05, conv_stem: bool = True, similarity: float = 0.0, similarity_depth: int = 0, similarity_over: str = 'heads', similarity_of: str = 'emitted', *, drop_path: float | Sequence[float] = 0.0, dropout: float = 0.0, attention: Callable[[int], keras.layers.Layer] | None = None, mlp: Callable[[int], keras.layers.Layer] | None = None, include_top: bool = True, weights: str | os.PathLike | None = None, input_shape: tuple[int, int, int] | None = None, pooling: str | None = None, classes: int = 1000, classifier_activation: str | Callable | keras.layers.Layer | None = 'softmax', include_preprocessing: bool = False, input_tensor: Any = None, name: str | None = None, remat: Union[bool, Literal['products']] = False, residual_dtype: str | None = None, dtype: Any = None, strict: bool = True) -> Chain: ...
class _RefinedViTSize(Protocol):
    def __call__(self, include_top: bool = True, weights: str | os.PathLike | None = None, input_tensor: Any = None, input_shape: tuple[int, int, int] | None = None, pooling: str | None = None, classes: int = ..., classifier_activation: str | Callable | keras.layers.Layer | None = 'softmax', name: str | None = None, include_preprocessing: bool = False, *, dim: int = ..., depth: int = ..., num_heads: int = ..., expansion: int = ..., kernel_size: int = ..., mlp_ratio: float = ..., dense_head: bool = ..., patch_size: int = ..., refiner: str | None = ..., shared_depth: int = ..., reduction: bool = ..., constraint: str | None = ..., residual_scale: float = ..., layer_scale: float | None = ..., conv_stem: bool = ..., similarity: float = ..., similarity_depth: int = ..., similarity_over: str = ..., similarity_of: str = ..., drop_path: float | Sequence[float] = ..., dropout: float = ..., attention: Callable[[int], keras.layers.Layer] | None = ..., mlp: Callable[[int], keras.layers.Layer] | None = ..., remat: Union[bool, Literal['products']] = ..., residual_dtype: str | None = ..., dtype: Any = ..., strict: bool = ...) -> Chain: ...
RefinedViT_Base: _RefinedViTSize
RefinedViT_S: _RefinedViTSize
RefinedViT_M: _RefinedViTSize
RefinedViT_L: _RefinedViTSize
RefinedViT_Mini: _RefinedViTSize
def RotaryViT(dim: int, depth: int, num_heads: int, rotary: Mapping[str, Any] | None = None, mlp_ratio: float = 4.0, gated_mlp: bool = False, mlp_norm: bool = False, qkv_bias: bool | str = True, positions: str | None = None, register_tokens: int = 0, layer_scale: float | None = 1e-05, mean_pooling: bool = False, epsilon: float = 1e-06, patch_size: int = 16, class_token: bool = True, attention_pooling: int = 0, pre_norm: bool = False, patch_bias: bool = True, last_norm: bool = True, heads_norm: bool = False, *, drop_path: float | Sequence[float] = 0.0, dropout: float = 0.0, attention: Callable[[int], keras.layers.Layer] | None = None, mlp: Callable[[int], keras.layers.Layer] | None = None, include_top: bool = True, weights: str | os.PathLike | None = None, input_shape: tuple[int, int, int] | None = None, pooling: str | None = None, classes: int = 1000, classifier_activation: str | Callable | keras.layers.Layer | None = 'softmax', include_preprocessing: bool = False, input_tensor: Any = None, name: str | None = None, remat: Union[bool, Literal['products']] = False, residual_dtype: str | None = None, dtype: Any = None, strict: bool = True) -> Chain: ...
class _RotaryViTSize(Protocol):
    def __call__(self, include_top: bool = True, weights: str | os.PathLike | None = None, input_tensor: Any = None, input_shape: tuple[int, int, int] | None = None, pooling: str | None = None, classes: int = ..., classifier_activation: str | Callable | keras.layers.Layer | None = 'softmax', name: str | None = None, include_preprocessing: bool = False, *, dim: int = ..., depth: int = ..., num_heads: int = ..., rotary: Mapping[str, Any] | None = ..., mlp_ratio: float = ..., gated_mlp: bool = ..., mlp_norm: bool = ..., qkv_bias: bool | str = ..., positions: str | None = ..., register_tokens: int = ..., layer_scale: float | None = ..., mean_pooling: bool = ..., epsilon: float = ..., patch_size: int = ..., class_token: bool = ..., attention_pooling: int = ..., pre_norm: bool = ..., patch_bias: bool = ..., last_norm: bool = ..., heads_norm: bool = ..., drop_path: float | Sequence[float] = ..., dropout: float = ..., attention: Callable[[int], keras.layers.Layer] | None = ..., mlp: Callable[[int], keras.layers.Layer] | None = ..., remat: Union[bool, Literal['products']] = ..., residual_dtype: str | None = ..., dtype: Any = ..., strict: bool = ...) -> Chain: ...
RoPEViT_S: _RotaryViTSize
RoPEViT_B: _RotaryViTSize
RoPEViT_L: _RotaryViTSize
RoPEViT_S_APE: _RotaryViTSize
RoPEViT_B_APE: _RotaryViTSize
RoPEViT_L_APE: _RotaryViTSize
RoPEViT_S_Mixed: _RotaryViTSize
RoPEViT_B_Mixed: _RotaryViTSize
RoPEViT_L_Mixed: _RotaryViTSize
RoPEViT_S_Mixed_APE: _RotaryViTSize
RoPEViT_B_Mixed_APE: _RotaryViTSize
RoPEViT_L_Mixed_APE: _RotaryViTSize
DINOv3_S: _RotaryViTSize
DINOv3_S_Plus: _RotaryViTSize
DINOv3_B: _RotaryViTSize
DINOv3_L: _RotaryViTSize
EVA02_Ti: _RotaryViTSize
EVA02_S: _RotaryViTSize
EVA02_B: _RotaryViTSize
EVA02_L: _RotaryViTSize
