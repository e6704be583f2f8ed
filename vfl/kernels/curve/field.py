"""Arithmetic modulo p = 2²⁵⁵ − 19 on vectors of numbers, as LLVM instructions without branches.

A number is a list of limbs (digits), least significant first. Limb k of W numbers fills one vector of W lanes,
64 bits each.

| form | limbs | product of two limbs | for |
|---|---|---|---|
| fused | 5 of 51 bits | `vpmadd52`: low and high 52 bits are added | x86 with AVX-512 IFMA or AVX-IFMA |
| plain | 10 of 26 and 25 bits | 32 × 32 → 64 bits | every other processor |

Bounds, with b the bits of a limb. A number is *tight* if each limb is below 2^b + 2²¹, and *loose* if each limb is below 2⁶⁰.
Products and squares take tight numbers, whose limbs fit into 52 or 32 bits, and return loose numbers. A limb of the result is
at most 1 + 19·9 products, each below 2⁵²·1.1 in the plain form, and less in the fused form. `tight` takes any limbs below 2⁶².
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from llvmlite import ir
from numba.core import cgutils

if TYPE_CHECKING:
    from collections.abc import Sequence

Number: TypeAlias = "list[ir.Value]"
Pairs: TypeAlias = "list[tuple[int, int]]"

WORD = ir.IntType(64)
FUSED_LIMBS = 5


@dataclass(frozen=True, slots=True)
class Form:
    """Form of numbers; see the module's table. lanes : numbers per vector."""

    lanes: int
    fused: bool

    @property
    def bits(self) -> tuple[int, ...]:
        """Return the bits of each limb, 255 in total."""
        return (51,) * FUSED_LIMBS if self.fused else (26, 25) * 5

    @property
    def vector(self) -> ir.VectorType:
        """Return the type of one limb in all lanes."""
        return ir.VectorType(WORD, self.lanes)


class Field:
    """Emits arithmetic modulo p on numbers of one `Form` (fused or plain limbs), as LLVM instructions of a builder."""

    def __init__(self, builder: ir.IRBuilder, form: Form) -> None:
        self._builder, self._form, self._bits = builder, form, form.bits
        self._size = len(form.bits)

    def number(self, value: int) -> Number:
        """Return a constant as a tight number, for 0 ≤ value < 2²⁵⁵."""
        starts = [sum(self._bits[:k]) for k in range(self._size)]
        return [self._all(value >> start & (1 << bits) - 1) for start, bits in zip(starts, self._bits, strict=True)]

    def plus(self, a: Number, b: Number) -> Number:
        """Return a + b, for loose a and b."""
        return [self._builder.add(x, y) for x, y in zip(a, b, strict=True)]

    def minus(self, a: Number, b: Number) -> Number:
        """Return a − b for loose a and b. A multiple of p with limbs of at least 2⁶⁰ is added, so that no limb is negative."""
        scale = 1 << 61 - min(self._bits)
        multiple = [self._all(scale * ((1 << bits) - (1 if k else 19))) for k, bits in enumerate(self._bits)]
        return [self._builder.sub(x, y) for x, y in zip(self.plus(a, multiple), b, strict=True)]

    def tight(self, a: Number) -> Number:
        """Return the same value in tight limbs. The limbs of `a` must be below 2⁶².

        The carries of a first pass are below 19·2⁶²/2^b. That is below 2²¹ for fused limbs, which need one pass. Plain limbs
        need a second pass, whose carries are below 2²¹.
        """
        for _ in range(1 if self._form.fused else 2):
            carries = [self._builder.lshr(x, self._all(bits)) for x, bits in zip(a, self._bits, strict=True)]
            carries = [self._builder.mul(carries[-1], self._all(19)), *carries[:-1]]
            a = self.plus([self._low(x, bits) for x, bits in zip(a, self._bits, strict=True)], carries)
        return a

    def times(self, a: Number, b: Number) -> Number:
        """Return a·b, for tight a and b."""
        size = range(self._size)
        return self._product(a, b, [[(i, k - i) for i in size if k - i in size] for k in range(2 * self._size)])

    def times_small(self, a: Number, factor: int) -> Number:
        """Return a·factor, for a tight a and a factor below 2²⁰."""
        return self._product(a, [self._all(factor)], [[(k, 0)] for k in range(self._size)])

    def square(self, a: Number) -> Number:
        """Return a², for a tight a."""
        size = range(self._size)
        return self._product(
            a,
            a,
            [[(i, i) for i in size if 2 * i == k] for k in range(2 * self._size)],
            [[(i, k - i) for i in size if k - i in size and i < k - i] for k in range(2 * self._size)],
        )

    def words(self, a: Number) -> list[ir.Value]:
        """Return the four 64-bit words of a tight number, reduced modulo p."""
        carry = self._all(19)
        for x, bits in zip(a, self._bits, strict=True):  # a < 2p, so that the last carry is 1 if a ≥ p, else 0
            carry = self._builder.lshr(self._builder.add(x, carry), self._all(bits))
        carry, limbs = self._builder.mul(carry, self._all(19)), []
        for x, bits in zip(a, self._bits, strict=True):  # a + 19 without bit 255 is a − p
            x = self._builder.add(x, carry)  # noqa: PLW2901
            limbs.append(self._low(x, bits))
            carry = self._builder.lshr(x, self._all(bits))
        words, start = [self._all(0)] * 5, 0
        for x, bits in zip(limbs, self._bits, strict=True):
            at, shift = divmod(start, 64)
            words[at] = self._builder.or_(words[at], self._builder.shl(x, self._all(shift)))
            if shift + bits > 64:
                words[at + 1] = self._builder.lshr(x, self._all(64 - shift))
            start += bits
        return words[:4]

    def of_words(self, words: Sequence[ir.Value]) -> Number:
        """Return the tight number that four 64-bit words encode, without bit 255."""
        limbs, start = [], 0
        for bits in self._bits:
            at, shift = divmod(start, 64)
            x = self._builder.lshr(words[at], self._all(shift))
            if shift + bits > 64:
                x = self._builder.or_(x, self._builder.shl(words[at + 1], self._all(64 - shift)))
            limbs.append(self._low(x, bits))
            start += bits
        return limbs

    def _product(self, a: Number, b: Number, once: list[Pairs], twice: list[Pairs] | None = None) -> Number:
        """Return Σ_k 2^(start of limb k) (Σ_once a_i·b_j + 2 Σ_twice a_i·b_j), for pairs (i, j) with i + j = k."""
        none: list[Pairs] = [[]] * (2 * self._size)
        once, twice = [*once, *none][: 2 * self._size], twice or none
        columns = (self._fused_columns if self._form.fused else self._plain_columns)(a, b, once, twice)
        low, high = columns[: self._size], columns[self._size :]
        return self.plus(low, [self._builder.mul(x, self._all(19)) for x in high])

    def _fused_columns(self, a: Number, b: Number, once: list[Pairs], twice: list[Pairs]) -> Number:
        """Return low halves of the column's products plus twice the previous column's high halves, since 2⁵² = 2·2⁵¹."""
        columns, once, twice = [], [[], *once], [[], *twice]
        for k in range(2 * self._size):
            total = self._added("h", self._all(0), a, b, twice[k])
            total = self._added("h", self._builder.add(total, total), a, b, once[k])
            total = self._added("l", total, a, b, twice[k + 1])
            columns.append(self._added("l", self._builder.add(total, total), a, b, once[k + 1]))
        return columns

    def _added(self, half: str, total: ir.Value, a: Number, b: Number, pairs: Pairs) -> ir.Value:
        """Return the total plus the low or high 52 bits of the products a_i·b_j of these pairs (i, j)."""
        vector = self._form.vector
        name = f"llvm.x86.avx512.vpmadd52{half}.uq.{64 * self._form.lanes}"
        kind = ir.FunctionType(vector, [vector] * 3)
        add = cgutils.get_or_insert_function(self._builder.module, kind, name)
        for i, j in pairs:
            total = self._builder.call(add, [total, a[i], b[j]])
        return total

    def _plain_columns(self, a: Number, b: Number, once: list[Pairs], twice: list[Pairs]) -> Number:
        """Return the sums of products per column, as for `_product`.

        A product of two odd limbs counts twice. An odd limb starts half a bit higher than its index times 25.5 bits, so the
        product of two odd limbs starts one bit above its column.
        """
        builder, columns = self._builder, []
        doubled = [self._low(builder.add(x, x), 32) for x in a]
        a, b = ([self._low(x, 32) for x in number] for number in (a, b))  # so that the compiler sees 32 × 32 bits
        for own, crossed in zip(once, twice, strict=True):
            total = self._all(0)
            for pairs in (crossed, own):
                total = builder.add(total, total)
                for i, j in pairs:
                    total = builder.add(total, builder.mul((doubled if i & j & 1 else a)[i], b[j]))
            columns.append(total)
        return columns

    def _low(self, x: ir.Value, bits: int) -> ir.Value:
        return self._builder.and_(x, self._all((1 << bits) - 1))

    def _all(self, value: int) -> ir.Constant:
        return ir.Constant(self._form.vector, [value] * self._form.lanes)
