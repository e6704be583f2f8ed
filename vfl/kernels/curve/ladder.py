"""X25519 (RFC 7748) of one secret scalar with many points: parallel Montgomery ladders, which run in constant time.

Guarantee: the executed instructions and addresses depend only on the number of points, not on the scalar or the points. Swaps
are masked exclusive-ors, and every jump tests a loop counter. tests/kernels/test_curve.py checks this in the machine code.
"""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.registry import cpu_target

from vfl.kernels.compile import compiled
from vfl.kernels.curve.field import FUSED_LIMBS, WORD, Field, Form
from vfl.kernels.machine import inline

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt
    from numba.core.base import BaseContext
    from numba.core.typing.templates import Signature

    from vfl.kernels.curve.field import Number
    from vfl.kernels.machine import Code

    Points = npt.NDArray[np.uint8]
    Words = npt.NDArray[np.uint64]

STEPS = 255
A24 = 121665
"""(A − 2)/4 for the coefficient A = 486662 of the curve v² = u³ + A u² + u."""


@functools.cache
def form_here() -> Form:
    """Return the fastest form of numbers for the processor for which Numba compiles."""
    _, _, features = cpu_target.target_context.codegen().magic_tuple()
    known = set(features.split(","))
    if "+avx512ifma" in known:
        return Form(8, fused=True)
    if "+avxifma" in known:
        return Form(4, fused=True)
    return Form(8 if "+avx512f" in known else 4 if "+avx2" in known else 2, fused=False)


def multiply(secret: bytes, points: Points, form: Form | None = None) -> Points:
    """Return X25519(secret, u) for each point u, (n, 32) uint8. The interpreter's lock is released.

    A point of small order gives the product zero, and products of neighbouring points may also become zero. Refuse all points
    if any product is zero.

    secret : 32 bytes, not yet clamped. points : (n, 32) uint8. form : form of numbers; None for the fastest.
    """
    form = form or form_here()
    n, lanes = len(points), form.lanes
    groups = math.ceil(n / lanes)
    words = np.full((groups * lanes, 4), 9, np.uint64)  # 9, the base point, fills the last group
    words[:n] = np.ascontiguousarray(points).view("<u8")
    words = np.ascontiguousarray(words.reshape(groups, lanes, 4).swapaxes(1, 2))
    scratch = np.empty((groups, 3, len(form.bits), lanes), np.uint64)
    _multiply(words, _swaps(secret), scratch, (0,) * lanes, (0,) * len(form.bits))
    products = np.ascontiguousarray(words.swapaxes(1, 2)).reshape(-1, 4)[:n]
    return products.astype("<u8", copy=False).view(np.uint8)


def _swaps(secret: bytes) -> Words:
    """Return the ladder's masks for t = 254 down to 0. A mask is all ones if bits t and t + 1 of the clamped scalar differ."""
    scalar = np.frombuffer(secret, np.uint8).copy()
    scalar[0] &= 248
    scalar[31] = scalar[31] & 127 | 64
    bits = np.unpackbits(scalar, bitorder="little").astype(np.uint64)  # bit 255 is 0
    return (np.uint64(0) - (bits[:-1] ^ bits[1:]))[::-1].copy()


@compiled
def _multiply(words: Words, swaps: Words, scratch: Words, lanes: tuple[int, ...], limbs: tuple[int, ...]) -> None:
    """Replace the points, (groups, 4, lanes), by their products. The types of the tuples contain the tuples' lengths."""
    _ladders(words, swaps, scratch, lanes, limbs)


@inline
def _ladders(
    _context: BaseContext,
    words: types.Array,
    swaps: types.Array,
    scratch: types.Array,
    lanes: types.UniTuple,
    limbs: types.UniTuple,
) -> tuple[Signature, Code]:
    def code(context: BaseContext, builder: ir.IRBuilder, signature: Signature, args: list[ir.Value]) -> ir.Value:
        form = Form(lanes.count, fused=limbs.count == FUSED_LIMBS)
        points, masks, kept = (
            context.make_array(kind)(context, builder, arg)
            for kind, arg in zip(signature.args[:3], args[:3], strict=True)
        )
        groups = builder.extract_value(points.shape, 0)
        _write(builder, form, groups, points.data, masks.data, kept.data)
        return context.get_dummy_value()

    return types.void(words, swaps, scratch, lanes, limbs), code


class _Variable:
    """Vectors on the stack. The compiler keeps them in registers where it can."""

    def __init__(self, builder: ir.IRBuilder, values: Sequence[ir.Value]) -> None:
        self._builder = builder
        self._places = [cgutils.alloca_once(builder, value.type) for value in values]
        self.set(values)

    def set(self, values: Sequence[ir.Value]) -> None:
        for place, value in zip(self._places, values, strict=True):
            self._builder.store(value, place)

    def get(self) -> list[ir.Value]:
        return [self._builder.load(place) for place in self._places]


class _Rows:
    """Array of groups of vectors. size : vectors per group."""

    def __init__(self, builder: ir.IRBuilder, form: Form, data: ir.Value, size: int) -> None:
        self._builder, self._form, self._data, self._size = builder, form, data, size

    def get(self, group: ir.Value, start: int, stop: int) -> list[ir.Value]:
        return [self._builder.load(self._place(group, k), align=8) for k in range(start, stop)]

    def set(self, group: ir.Value, start: int, values: Sequence[ir.Value]) -> None:
        for k, value in enumerate(values, start):
            self._builder.store(value, self._place(group, k), align=8)

    def _place(self, group: ir.Value, k: int) -> ir.Value:
        row = self._builder.add(self._builder.mul(group, WORD(self._size)), WORD(k))
        there = self._builder.gep(self._data, [self._builder.mul(row, WORD(self._form.lanes))])
        return self._builder.bitcast(there, self._form.vector.as_pointer())


def _write(
    builder: ir.IRBuilder, form: Form, groups: ir.Value, points: ir.Value, masks: ir.Value, kept: ir.Value
) -> None:
    """Write the ladders of all groups, then the divisions x/z with one shared inversion (Montgomery)."""
    field, size = Field(builder, form), len(form.bits)
    words, rows = _Rows(builder, form, points, 4), _Rows(builder, form, kept, 3 * size)
    product = _Variable(builder, field.number(1))
    with cgutils.for_range(builder, groups) as loop:
        u = field.of_words(words.get(loop.index, 0, 4))
        x, z = _ladder(builder, field, form, u, masks)
        rows.set(loop.index, 0, [*x, *z, *product.get()])
        product.set(field.tight(field.times(product.get(), z)))
    inverse = _Variable(builder, _inverse(builder, field, product.get()))
    with cgutils.for_range(builder, groups) as loop:
        group = builder.sub(builder.sub(groups, WORD(1)), loop.index)
        row = rows.get(group, 0, 3 * size)
        x, z, before = row[:size], row[size : 2 * size], row[2 * size :]
        own = field.tight(field.times(inverse.get(), before))
        inverse.set(field.tight(field.times(inverse.get(), z)))
        words.set(group, 0, field.words(field.tight(field.times(x, own))))


def _ladder(builder: ir.IRBuilder, field: Field, form: Form, u: Number, masks: ir.Value) -> tuple[Number, Number]:
    """Return (x, z), where x/z is the product of the scalar and the point u, by the ladder of RFC 7748, section 5."""
    state = [_Variable(builder, number) for number in (field.number(1), field.number(0), u, field.number(1))]
    zeros = ir.Constant(ir.VectorType(ir.IntType(32), form.lanes), [0] * form.lanes)
    with cgutils.for_range(builder, WORD(STEPS)) as loop:
        mask = builder.load(builder.gep(masks, [loop.index]))
        mask = builder.insert_element(ir.Constant(form.vector, ir.Undefined), mask, ir.IntType(32)(0))
        mask = builder.shuffle_vector(mask, mask, zeros)
        x2, z2, x3, z3 = (variable.get() for variable in state)
        for one, other in ((x2, x3), (z2, z3)):
            for k, (a, b) in enumerate(zip(one, other, strict=True)):
                change = builder.and_(mask, builder.xor(a, b))
                one[k], other[k] = builder.xor(a, change), builder.xor(b, change)
        a, b = field.tight(field.plus(x2, z2)), field.tight(field.minus(x2, z2))
        c, d = field.tight(field.plus(x3, z3)), field.tight(field.minus(x3, z3))
        da, cb = field.times(d, a), field.times(c, b)
        x3 = field.square(field.tight(field.plus(da, cb)))
        z3 = field.times(u, field.tight(field.square(field.tight(field.minus(da, cb)))))
        aa, bb = field.tight(field.square(a)), field.tight(field.square(b))
        e = field.tight(field.minus(aa, bb))
        x2 = field.times(aa, bb)
        z2 = field.times(e, field.tight(field.plus(aa, field.times_small(e, A24))))
        for variable, number in zip(state, (x2, z2, x3, z3), strict=True):
            variable.set(number)
    # The last bit of a clamped scalar is 0, so no swap is left to undo.
    return field.tight(state[0].get()), field.tight(state[1].get())


def _inverse(builder: ir.IRBuilder, field: Field, z: Number) -> Number:
    """Return z^(p − 2), the inverse of z. In binary, the exponent is 250 ones followed by 01011."""
    power = _Variable(builder, z)

    def append(bit: int) -> None:
        squared = field.tight(field.square(power.get()))
        power.set(field.tight(field.times(squared, z)) if bit else squared)

    with cgutils.for_range(builder, WORD(249)):
        append(1)
    for bit in (0, 1, 0, 1, 1):
        append(bit)
    return power.get()
