"""Shorter forms of what tf2onnx writes, which ONNX Runtime knows as one operation."""

import itertools
import math
from typing import Any

import numpy as np


def shorten(model: Any) -> None:
    """Rewrite an ONNX model in place; what has another form stays as it is.

    - Layer normalization, written as eleven operations, becomes `LayerNormalization`.
    - x * sqrt(1/2) before `Erf` becomes x / sqrt(2), by which ONNX Runtime recognizes GELU.
    - The shape of a `Reshape`, computed from the batch size, becomes a constant with -1.
    - Operations without use are removed.
    """
    graph = _Graph(model)
    for node in list(model.graph.node):
        if node.op_type == "Erf":
            graph.divide_before(node)
        if node.op_type == "Reshape":
            graph.fix_shape(node)
        if node.op_type == "Add":
            graph.normalize(node)
    graph.remove_unused()


class _Graph:
    def __init__(self, model):
        from onnx import numpy_helper, shape_inference

        self.graph = model.graph
        self.makers = {name: node for node in self.graph.node for name in node.output}
        self.constants = {each.name: numpy_helper.to_array(each) for each in self.graph.initializer}
        inferred = shape_inference.infer_shapes(model, data_prop=True).graph
        self.shapes = {
            each.name: [side.dim_value or None for side in each.type.tensor_type.shape.dim]
            for each in inferred.value_info
        }
        self.names = itertools.count()

    def divide_before(self, erf) -> None:
        product = self.maker(erf.input[0], "Mul")
        if product is None:
            return
        x, factor = self.split(product)
        if factor is not None and factor.size == 1 and math.isclose(factor, 0.5**0.5, rel_tol=1e-6):
            product.op_type = "Div"
            product.input[:] = [x, self.constant(np.full_like(factor, 2**0.5))]

    def fix_shape(self, reshape) -> None:
        sides = self.shapes.get(reshape.output[0], [])
        if reshape.input[1] not in self.constants and sides.count(None) == 1:
            shape = np.array([side or -1 for side in sides], "int64")
            reshape.input[1] = self.constant(shape)

    def normalize(self, last) -> None:
        r"""Rewrite x s + (beta - mean s), with s = gamma / sqrt(variance + epsilon)."""
        found = self.parts(last)
        if found is None:
            return
        x, gamma, beta, epsilon = found
        width = (self.shapes.get(x) or [None])[-1]
        if width is None:
            return
        gamma, beta = (
            self.constant(np.broadcast_to(np.float32(value).reshape(-1), width).copy())
            for value in (gamma, beta)
        )
        last.op_type = "LayerNormalization"
        last.input[:] = [x, gamma, beta]
        last.attribute.extend(_attributes(axis=-1, epsilon=float(epsilon)))

    def parts(self, last):
        """Return x, gamma, beta and epsilon of a normalization that ends in an addition."""
        for first, second in (last.input, reversed(last.input)):
            scaled, shift, beta = self.maker(first, "Mul"), second, 0.0
            added = self.maker(shift, "Add")
            if added is not None:
                shift, beta = self.split(added)
            shift = self.maker(shift, "Mul")
            if scaled is None or shift is None or beta is None:
                continue
            for (x, s), (minus, same) in itertools.product(*map(_orders, (scaled, shift))):
                negative = self.maker(minus, "Neg")
                scale = self.scale(s, x) if s == same and negative is not None else None
                if scale is not None and scale[0] == negative.input[0]:
                    return x, scale[1], beta, scale[2]
        return None

    def scale(self, s, x):
        """Return the name of the mean, gamma and epsilon of a scale s."""
        product, gamma = self.maker(s, "Mul"), 1.0
        if product is not None:
            s, gamma = self.split(product)
        variance = s
        for operation in ("Reciprocal", "Sqrt", "Add"):
            node = self.maker(variance, operation)
            if node is None:
                return None
            variance = node.input[0]
        variance, epsilon = self.split(node)
        square = self.mean_of(variance)
        square = square and self.maker(square, "Mul")
        if not square or square.input[0] != square.input[1] or gamma is None or epsilon is None:
            return None
        difference = self.maker(square.input[0], "Sub")
        if difference is None or difference.input[0] != x or epsilon.size != 1:
            return None
        mean = difference.input[1]
        return (mean, gamma, epsilon.item()) if self.mean_of(mean) == x else None

    def mean_of(self, name):
        """Return the input of a mean along the last axis, which is kept, if `name` is one."""
        node = self.maker(name, "ReduceMean")
        if (
            node is None
            or len(node.input) < 2
            or any(each.name == "keepdims" and not each.i for each in node.attribute)
        ):
            return None
        axes = self.constants.get(node.input[1])
        rank = len(self.shapes.get(node.input[0], ()))
        is_last = axes is not None and axes.size == 1 and axes.item() in (-1, rank - 1)
        return node.input[0] if is_last else None

    def maker(self, name, operation):
        node = self.makers.get(name)
        return node if node is not None and node.op_type == operation else None

    def split(self, node):
        """Return the name of the input of a node that is no constant, and the constant or None."""
        first, second = node.input
        if first in self.constants:
            return second, self.constants[first]
        return first, self.constants.get(second)

    def constant(self, values):
        from onnx import numpy_helper

        name = f"short_{next(self.names)}"
        self.graph.initializer.append(numpy_helper.from_array(values, name))
        self.constants[name] = values
        return name

    def remove_unused(self) -> None:
        needed, waiting = set(), [each.name for each in self.graph.output]
        while waiting:
            name = waiting.pop()
            if name not in needed:
                needed.add(name)
                waiting += self.makers[name].input if name in self.makers else ()
        for items, is_needed in (
            (self.graph.node, lambda node: needed & set(node.output)),
            (self.graph.initializer, lambda one: one.name in needed),
        ):
            kept = [each for each in items if is_needed(each)]
            del items[:]
            items.extend(kept)


def _orders(node):
    first, second = node.input
    return (first, second), (second, first)


def _attributes(**values):
    from onnx import helper

    return [helper.make_attribute(name, value) for name, value in values.items()]
