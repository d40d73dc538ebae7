"""DeepViT and Refined-ViT in plain PyTorch, written directly from the formulas."""

import torch
from torch import nn


class Attention(nn.Module):
    """change(softmax(QK^T / sqrt(d))) V."""

    def __init__(self, dim, heads, change=None):
        super().__init__()
        self.heads, self.scale = heads, (dim // heads) ** -0.5
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.change = change

    def forward(self, x, carried=None):
        batch, tokens, dim = x.shape
        qkv = self.qkv(x).reshape(batch, tokens, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        q, k, v = qkv.unbind(0)
        maps = (q @ k.transpose(-2, -1) * self.scale).softmax(-1)
        if carried is not None:
            maps = maps + carried * self.scale
        changed = self.change(maps) if self.change else maps
        return self.proj((changed @ v).transpose(1, 2).reshape(batch, tokens, dim)), maps


class SharedAttention(nn.Module):
    """change(A) V with the maps A of the previous block and its own values V."""

    def __init__(self, dim, heads, change):
        super().__init__()
        self.heads, self.scale = heads, (dim // heads) ** -0.5
        self.v, self.proj = nn.Linear(dim, dim), nn.Linear(dim, dim)
        self.change = change

    def forward(self, x, carried):
        batch, tokens, dim = x.shape
        v = self.v(x).reshape(batch, tokens, self.heads, -1).transpose(1, 2)
        y = (self.change(carried) * self.scale) @ v
        return self.proj(y.transpose(1, 2).reshape(batch, tokens, dim)), carried


class Refiner(nn.Module):
    """BN(A + BN(W_r relu6(BN(w * relu6(BN(W_e A)))))); W_e expands to three times the heads."""

    def __init__(self, heads):
        super().__init__()
        wide = 3 * heads
        self.inside = nn.Sequential(
            nn.Conv2d(heads, wide, 1, bias=False),
            nn.BatchNorm2d(wide),
            nn.ReLU6(),
            nn.Conv2d(wide, wide, 3, padding=1, groups=wide, bias=False),
            nn.BatchNorm2d(wide),
            nn.ReLU6(),
            nn.Conv2d(wide, heads, 1, bias=False),
            nn.BatchNorm2d(heads),
        )
        self.norm = nn.BatchNorm2d(heads)

    def forward(self, maps):
        return self.norm(maps + self.inside(maps))


class Block(nn.Module):
    """Two residual branches; inputs are multiplied by `residual_scale`, outputs divided by it."""

    def __init__(self, dim, attention, mlp_ratio=3.0, residual_scale=0.5, layer_scale=False):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(dim, eps=1e-6), nn.LayerNorm(dim, eps=1e-6)
        self.attention, self.scale = attention, residual_scale
        hidden = int(mlp_ratio * dim)
        self.mlp = nn.Sequential(nn.Linear(dim, hidden), nn.GELU(), nn.Linear(hidden, dim))
        self.layer_scale = nn.Parameter(torch.full((dim,), 1e-5)) if layer_scale else None

    def forward(self, x, carried=None):
        y, maps = self.attention(self.norm1(x * self.scale), carried)
        x = x + y / self.scale
        y = self.mlp(self.norm2(x * self.scale))
        y = y if self.layer_scale is None else y * self.layer_scale
        return x + y / self.scale, maps


class Network(nn.Module):
    """Convolutional stem, patches, class token, blocks that pass on their maps, classifier."""

    def __init__(self, channels, dim, blocks, carries):
        super().__init__()
        stem = []
        for i, (fed, made) in enumerate(zip((3, *channels), channels, strict=False)):
            kernel, stride = ((7, 2), (3, 1))[i > 0]
            convolution = nn.Conv2d(fed, made, kernel, stride, kernel // 2, bias=False)
            stem += [convolution, nn.BatchNorm2d(made), nn.ReLU()]
        self.stem = nn.Sequential(*stem, nn.Conv2d(channels[-1], dim, 8, 8))
        self.token = nn.Parameter(torch.zeros(1, 1, dim))
        self.positions = nn.Parameter(torch.zeros(1, 197, dim))
        self.blocks, self.carries = nn.ModuleList(blocks), carries
        self.norm, self.head = nn.LayerNorm(dim, eps=1e-6), nn.Linear(dim, 1000)

    def forward(self, images):
        x = self.stem(images).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(len(x), -1, -1), x], 1) + self.positions
        maps = None
        for block in self.blocks:
            x, made = block(x, maps)
            maps = made if self.carries else None
        return self.head(self.norm(x)[:, 0])


def deepvit_s():
    """Return DeepViT-S: re-attention in the last five of sixteen blocks."""
    dim, heads = 396, 12

    def re_attention():
        return nn.Sequential(nn.Conv2d(heads, heads, 1), nn.BatchNorm2d(heads))

    return Network(
        (64, 64),
        dim,
        [Block(dim, Attention(dim, heads, re_attention() if i >= 11 else None)) for i in range(16)],
        carries=False,
    )


def refined_vit_s():
    """Return Refined-ViT-S: every second block refines the maps of the previous one."""
    dim, heads = 384, 12

    def block(index):
        attention = SharedAttention(dim, heads, Refiner(heads)) if index % 2 else None
        return Block(dim, attention or Attention(dim, heads), layer_scale=True)

    return Network((32, 64, 128), dim, map(block, range(16)), carries=True)
