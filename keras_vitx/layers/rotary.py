"""Rotary position embeddings of patches."""

from math import pi
from typing import Literal

from keras_vitx.checks import check, check_argument
from keras_vitx.layers import ops
from keras_vitx.layers.base import Layer, register
from keras_vitx.layers.initializers import Uniform


@register
class RotaryEmbedding(Layer):
    r"""Rotary position embedding: queries and keys are rotated by angles that tell their patches.

    Each pair of channels $(a, b)$ of a head becomes
    $$(a \cos\theta - b \sin\theta,\; a \sin\theta + b \cos\theta), \qquad
    \theta = y f_y + x f_x$$
    at row $y$ and column $x$, so that logits depend on differences of positions. In the axial form,
    half of the pairs have $f_x = 0$ and half $f_y = 0$; with $n$ pairs each, the other frequency of
    the $i$-th is $T^{-i/n}$ (RoPE-ViT, arXiv 2403.13298, Section 3.2). Tokens before the patches,
    which an input may lack, are not rotated. All is computed in float32.

    Input and output: a pair of queries and keys, `(batch, tokens, heads, size)`, of which 4 divides
    the size. Where pairs are neighbors, the first of all pairs come before the second in the output
    of both, which their product does not see.

    Args:
        grid: Rows and columns of patches; `Chain.at_size` replaces it.
        num_prefix_tokens: Number of tokens before the patches.
        temperature: $T$.
        learned: Whether all frequencies are learned, `freqs` (2, heads, size / 2): RoPE-ViT's mixed
            form. They start as the axial ones, turned by a random angle per head.
        order: Axis of the first half of the pairs, or of `freqs[0]`: `"yx"`, rows, or `"xy"`.
        halves: Whether a pair is a channel of each half, rather than neighbors.
        centered: Whether $y$ and $x$ run from $-2\pi$ to $2\pi$ over the centers of the patches
            of any grid, rather than count them (DINOv3, arXiv 2508.10104, Section 3.2).
        reference_grid: Grid in which patches are counted (EVA-02, arXiv 2303.11331); None: theirs.
        offset: What is added to $y$ and $x$ where patches are counted, before they are counted in
            another grid (Perception Encoder, arXiv 2504.13181).
    """

    def __init__(
        self,
        grid: tuple[int, int],
        num_prefix_tokens: int = 0,
        temperature: float = 100.0,
        learned: bool = False,
        order: str = "yx",
        halves: bool = False,
        centered: bool = False,
        reference_grid: tuple[int, int] | None = None,
        offset: float = 0.0,
        **kwargs,
    ):
        super().__init__(**kwargs)
        check_argument("order", order, Literal["yx", "xy"])
        self.grid, self.num_prefix_tokens = tuple(grid), num_prefix_tokens
        self.temperature, self.learned = temperature, learned
        self.order, self.halves = order, halves
        self.centered, self.offset = centered, offset
        self.reference_grid = reference_grid and tuple(reference_grid)

    def build(self, input_shape):
        (_, _, heads, self.size), _ = input_shape
        check(self.size % 4 == 0, "`head_size` must be a multiple of 4 to be rotated.", self.size)
        if self.learned:
            shape = (2, heads, self.size // 2)
            self.freqs = self.add_weight(shape, self.at_start, autocast=False, name="freqs")

    def call(self, queries_keys):
        angles = self.angles()[-ops.shape(queries_keys[0])[1] :]
        pair = [ops.at_least_float32(x) for x in queries_keys]
        cos, sin = (ops.cast(wave, pair[0].dtype) for wave in (ops.cos(angles), ops.sin(angles)))
        rotated = (ops.rotate(x, cos, sin, self.halves) for x in pair)
        return tuple(ops.cast(x, self.compute_dtype) for x in rotated)

    def angles(self):
        r"""Return $\theta$, `(tokens, heads or 1, size / 2)`, with 0 before the patches."""
        # Of tensors of the device: one of NumPy would be copied to it in every step.
        y, x = map(self.coordinates, self.grid, self.reference_grid or self.grid)
        frequencies = self.freqs if self.learned else self.axial()
        of_y, of_x = (0, 1) if self.order == "yx" else (1, 0)
        angles = (y * frequencies[of_y])[:, None] + (x * frequencies[of_x])[None]
        angles = ops.reshape(angles, (-1, *angles.shape[2:]))
        return ops.pad(angles, ((self.num_prefix_tokens, 0), (0, 0), (0, 0)))

    def coordinates(self, side, reference):
        """Return the coordinates along one axis of the grid, `(side, 1, 1)`."""
        axis = ops.reshape(ops.arange(side, dtype="float32"), (-1, 1, 1))
        if self.centered:
            return 2 * pi * (2 * (axis + 0.5) / side - 1)
        axis = axis + self.offset
        return axis if side == reference else axis / side * reference

    def axial(self):
        """Return the frequencies of the axial form, `(2, 1, size / 2)`."""
        count = self.size // 4
        rates = self.temperature ** (-ops.arange(count, dtype="float32") / count)
        zeros = ops.zeros_like(rates)
        pairs = [rates, zeros], [zeros, rates]
        return ops.stack([ops.concatenate(pair)[None] for pair in pairs])

    def at_start(self, shape, dtype=None):
        """Return the initial learned frequencies."""
        angle, (along, across) = Uniform(0, 2 * pi)((shape[1], 1)), self.axial()
        cos, sin = ops.cos(angle), ops.sin(angle)
        return ops.cast(ops.stack([cos * along - sin * across, sin * along + cos * across]), dtype)
