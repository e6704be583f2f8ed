"""Blocks of records in vectors of 16-bit integers, for the loops of vfl.kernels.ring_loops.

Machines multiply 16-bit numbers fastest: one instruction gives the sum of two products, as 32 bits, in every lane. A word is
therefore split into limbs of few bits, whose products with a column are summed in 32 bits without overflow:

    word = Σ_f limb_f·2^(AT_f) modulo 2^64               |Σ over 32 products| ≤ 32·2^15·(2^11 − 1) < 2^31 for limbs of 11 bits
    weight = Σ_f digit_f·2^(12f),  |digit_f| ≤ 2^11       |Σ over 30 products| ≤ 30·2^15·2^11 < 2^31
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from llvmlite import ir
from llvmlite.binding import get_host_cpu_features
from numba import config, types
from numba.core import cgutils

from vfl.kernels.compile import inline

if TYPE_CHECKING:
    from numba.core.base import BaseContext
    from numba.core.typing.templates import Signature

    from vfl.kernels.compile import Code

LANES = 16
"""Records of one vector of 16-bit integers."""
TURNS = 16
"""Vectors of a block: with 2 products in a lane each, the most whose sums fit in 32 bits."""
BLOCK = LANES * TURNS
"""Records of a block."""
WORDS = 128
"""Records of a block of columns of words."""
AT = (0, 11, 22, 32, 48)
"""First bits of the limbs of a word.

The three limbs of the lower half have 11, 11 and 10 bits and are not negative. The two limbs of the upper half have 16 bits
and a sign: their sums count modulo 2^32 only, so they may overflow 32 bits.
"""
DIGIT = 12
"""Bits of a digit of a weight."""
DIGITS = 3
"""Digits that are multiplied in one pass over the columns."""
AHEAD = 256
"""Records between fetching a 16-bit cell and using it."""
WORDS_AHEAD = WORDS
"""Records between fetching a word and using it."""
ROWS_AHEAD = 1024
"""Number of words by which shares of waves are fetched ahead of their use."""
COLUMNS = 30
"""Columns whose products with one digit each fit in 32 bits."""
MULTIPLIES_PAIRS = bool(
    not (config.CPU_NAME or config.CPU_FEATURES)
    and get_host_cpu_features().get("avx2")  # the loops are for this machine
)
_SHORT, _NUMBER, _WORD, _BYTE = ir.IntType(16), ir.IntType(32), ir.IntType(64), ir.IntType(8)
_LINE = 64


def _vector(element: ir.Type, count: int) -> ir.VectorType:
    return ir.VectorType(element, count)


def _all(element: ir.Type, count: int, value: int) -> ir.Constant:
    """Return a constant with the same value in all lanes."""
    return ir.Constant(_vector(element, count), [value] * count)


def _picked(builder: ir.IRBuilder, left: ir.Value, right: ir.Value, lanes: Any) -> ir.Value:
    """Return the named lanes of two vectors."""
    lanes = list(lanes)
    return builder.shuffle_vector(left, right, ir.Constant(_vector(_NUMBER, len(lanes)), lanes))


def _address(
    context: BaseContext, builder: ir.IRBuilder, kind: types.Array, array: ir.Value, *at: ir.Value
) -> ir.Value:
    """Return the address of array[at], unchecked."""
    unpacked = context.make_array(kind)(context, builder, array)
    offset = at[-1]
    if len(at) == 2:
        offset = builder.add(builder.mul(at[0], builder.extract_value(unpacked.shape, 1)), offset)
    return builder.gep(unpacked.data, [offset], inbounds=True)


def _read(builder: ir.IRBuilder, address: ir.Value, element: ir.IntType, count: int, first: int = 0) -> ir.Value:
    """Return `count` elements from address[first] as a vector."""
    there = builder.gep(address, [_WORD(first)], inbounds=True)
    vector = builder.bitcast(there, _vector(element, count).as_pointer())
    return builder.load(vector, align=element.width // 8)


def _write(builder: ir.IRBuilder, address: ir.Value, value: ir.Value, first: int = 0) -> None:
    there = builder.gep(address, [_WORD(first)], inbounds=True)
    align = value.type.element.width // 8
    builder.store(value, builder.bitcast(there, value.type.as_pointer()), align=align)


def _sum(builder: ir.IRBuilder, kind: ir.Type) -> ir.Value:
    """Return the address of a variable that is 0."""
    variable = cgutils.alloca_once(builder, kind)
    builder.store(ir.Constant(kind, None), variable)
    return variable


def _pairs(builder: ir.IRBuilder, left: ir.Value, right: ir.Value) -> ir.Value:
    """Return left[2i]·right[2i] + left[2i + 1]·right[2i + 1], 32 bits, for vectors of 16-bit integers.

    One instruction where there is AVX2. The compiler would not find it in every such sum.
    """
    count = left.type.count
    if MULTIPLIES_PAIRS and count == LANES:
        kind = ir.FunctionType(_vector(_NUMBER, count // 2), [left.type, right.type])
        multiply = cgutils.get_or_insert_function(builder.module, kind, "llvm.x86.avx2.pmadd.wd")
        return builder.call(multiply, [left, right])
    wide = _vector(_NUMBER, count)
    products = builder.mul(builder.sext(left, wide), builder.sext(right, wide))
    return builder.add(*(_picked(builder, products, products, range(first, count, 2)) for first in (0, 1)))


def _fetch(builder: ir.IRBuilder, address: ir.Value, size: int) -> None:
    """Have `size` bytes from an address brought to the second-level cache; they need not exist."""
    pointer = _BYTE.as_pointer()
    kind = ir.FunctionType(ir.VoidType(), [pointer, _NUMBER, _NUMBER, _NUMBER])
    prefetch = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
    start = builder.bitcast(address, pointer)
    for line in range(0, size, _LINE):
        builder.call(prefetch, [builder.gep(start, [_WORD(line)]), _NUMBER(0), _NUMBER(2), _NUMBER(1)])


@inline
def split(_context: BaseContext, words: types.Array, _i: types.Type, limbs: types.Array) -> tuple[Signature, Code]:
    """Write the limbs of the BLOCK words from words[i] to limbs, (5, BLOCK) int16."""

    def code(context: BaseContext, builder: ir.IRBuilder, _signature: Signature, args: list[ir.Value]) -> ir.Value:
        source = _address(context, builder, words, args[0], args[1])
        target = _address(context, builder, limbs, args[2], _WORD(0), _WORD(0))
        with cgutils.for_range_slice(builder, _WORD(0), _WORD(BLOCK), _WORD(LANES)) as (first_record, _):
            records = builder.gep(source, [first_record], inbounds=True)
            there = builder.gep(target, [first_record], inbounds=True)
            both = builder.bitcast(_read(builder, records, _WORD, LANES), _vector(_NUMBER, 2 * LANES))
            lower, upper = (_picked(builder, both, both, range(half, 2 * LANES, 2)) for half in (0, 1))
            eleven = _all(_NUMBER, LANES, 2047)
            limbs_of = (
                builder.and_(lower, eleven),
                builder.and_(builder.lshr(lower, _all(_NUMBER, LANES, AT[1])), eleven),
                builder.lshr(lower, _all(_NUMBER, LANES, AT[2])),
                upper,  # its lower 16 bits, read with a sign
                builder.lshr(builder.add(upper, _all(_NUMBER, LANES, 1 << 15)), _all(_NUMBER, LANES, 16)),
            )
            for f, limb in enumerate(limbs_of):
                _write(builder, there, builder.trunc(limb, _vector(_SHORT, LANES)), f * BLOCK)
        return context.get_dummy_value()

    return types.void(words, types.int64, limbs), code


@inline
def add_limbs(
    _context: BaseContext,
    columns: types.Array,
    _j: types.Type,
    _k: types.Type,
    _i: types.Type,
    limbs: types.Array,
    totals: types.Array,
) -> tuple[Signature, Code]:
    """Add the products of a block of columns j and k with the limbs of its words to totals[j] and totals[j + 1].

    The BLOCK records begin at i. totals : (s + 1, 8) int64, whose rows are sums in parts.
    """

    def code(context: BaseContext, builder: ir.IRBuilder, _signature: Signature, args: list[ir.Value]) -> ir.Value:
        sources = [_address(context, builder, columns, args[0], j, args[3]) for j in args[1:3]]
        split_words = _address(context, builder, limbs, args[4], _WORD(0), _WORD(0))
        half, wide = LANES // 2, _vector(_WORD, LANES // 2)
        sums = [[_sum(builder, _vector(_NUMBER, half)) for _ in AT] for _ in sources]
        with cgutils.for_range_slice(builder, _WORD(0), _WORD(BLOCK), _WORD(LANES)) as (first_record, _):
            cells = [
                _read(builder, builder.gep(source, [first_record], inbounds=True), _SHORT, LANES) for source in sources
            ]
            for f in range(len(AT)):
                there = builder.gep(split_words, [builder.add(first_record, _WORD(f * BLOCK))], inbounds=True)
                limb = _read(builder, there, _SHORT, LANES)
                for own, cell in zip(sums, cells, strict=True):
                    builder.store(builder.add(builder.load(own[f]), _pairs(builder, cell, limb)), own[f])
        for place, own in enumerate(sums):
            target = _address(context, builder, totals, args[5], builder.add(args[1], _WORD(place)), _WORD(0))
            total = _read(builder, target, _WORD, half)
            found = [builder.load(sum_of) for sum_of in own]
            for limb, first in zip(found[:3], AT[:3], strict=True):
                total = builder.add(total, builder.shl(builder.sext(limb, wide), _all(_WORD, half, first)))
            # Modulo 2^32, since these limbs are of the upper half of the word.
            upper = builder.add(found[3], builder.shl(found[4], _all(_NUMBER, half, AT[4] - AT[3])))
            total = builder.add(total, builder.shl(builder.zext(upper, wide), _all(_WORD, half, AT[3])))
            _write(builder, target, total)
        return context.get_dummy_value()

    return types.void(columns, types.int64, types.int64, types.int64, limbs, totals), code


@inline
def add_digits(
    _context: BaseContext,
    columns: types.Array,
    chosen: types.Array,
    _count: types.Type,
    digits: types.Array,
    _first: types.Type,
    _i: types.Type,
    parts: types.Array,
) -> tuple[Signature, Code]:
    """Add Σ_c columns[chosen[c], i]·Σ_f digits[first + f, c]·2^(12(first + f)) to parts[i], for LANES records from i, f < 3.

    chosen : (count,) int64 of even size, at most COLUMNS. digits : (·, COLUMNS) int16. parts : int64, modulo 2^64.
    """

    def code(context: BaseContext, builder: ir.IRBuilder, _signature: Signature, args: list[ir.Value]) -> ir.Value:
        sums = [[_sum(builder, _vector(_NUMBER, 8)) for _ in range(2)] for _ in range(DIGITS)]
        with cgutils.for_range_slice(builder, _WORD(0), args[2], _WORD(2)) as (c, _):
            numbers = _address(context, builder, chosen, args[1], c)
            cells = []
            for place in (0, 1):
                number = builder.load(builder.gep(numbers, [_WORD(place)], inbounds=True))
                there = _address(context, builder, columns, args[0], number, args[5])
                _fetch(builder, builder.gep(there, [_WORD(AHEAD)]), 1)
                cells.append(_read(builder, there, _SHORT, LANES))
            # Records 0 to 3 and 8 to 11, and the others: an order that needs no exchange between halves of a vector.
            left, right = cells
            mixed = []
            for at in (0, 4):
                records = [*range(at, at + 4), *range(at + 8, at + 12)]
                mixed.append(_picked(builder, left, right, [x for r in records for x in (r, r + LANES)]))
            for f, own in enumerate(sums):
                row = builder.add(args[4], _WORD(f))
                there = builder.bitcast(_address(context, builder, digits, args[3], row, c), _NUMBER.as_pointer())
                both = builder.load(there, align=2)
                alone = builder.insert_element(ir.Constant(_vector(_NUMBER, 8), ir.Undefined), both, _NUMBER(0))
                digit = builder.bitcast(_picked(builder, alone, alone, [0] * 8), _vector(_SHORT, LANES))
                for variable, cell in zip(own, mixed, strict=True):
                    builder.store(builder.add(builder.load(variable), _pairs(builder, cell, digit)), variable)
        target = _address(context, builder, parts, args[6], args[5])
        for quarter in range(4):
            wide = _vector(_WORD, 4)
            total: ir.Value = ir.Constant(wide, None)
            for f, own in enumerate(sums):
                found = builder.load(own[quarter % 2])
                lanes = _picked(builder, found, found, range(4 * (quarter // 2), 4 * (quarter // 2) + 4))
                total = builder.add(total, builder.shl(builder.sext(lanes, wide), _all(_WORD, 4, DIGIT * f)))
            by = builder.mul(args[4], _WORD(DIGIT))
            filled = builder.insert_element(ir.Constant(wide, ir.Undefined), by, _NUMBER(0))
            total = builder.shl(total, _picked(builder, filled, filled, [0] * 4))
            _write(builder, target, builder.add(_read(builder, target, _WORD, 4, 4 * quarter), total), 4 * quarter)
        return context.get_dummy_value()

    return types.void(columns, chosen, types.int64, digits, types.int64, types.int64, parts), code


@inline
def four_rows(
    _context: BaseContext, table: types.Array, angles: types.Array, words: types.Array, _i: types.Type, out: types.Array
) -> tuple[Signature, Code]:
    """Write Σ_f table[angles[r], f]·words[r, f] modulo 2^64 to out[r] for r = i to i + 3; f ends at the last multiple of 4.

    table : int16.
    """

    def code(context: BaseContext, builder: ir.IRBuilder, _signature: Signature, args: list[ir.Value]) -> ir.Value:
        wide = _vector(_WORD, 4)
        width = builder.extract_value(context.make_array(words)(context, builder, args[2]).shape, 1)
        rows, own, sums = [], [], []
        for record in range(4):
            at = builder.add(args[3], _WORD(record))
            row = builder.zext(builder.load(_address(context, builder, angles, args[1], at)), _WORD)
            rows.append(_address(context, builder, table, args[0], row, _WORD(0)))
            own.append(_address(context, builder, words, args[2], at, _WORD(0)))
            sums.append((_sum(builder, wide), _sum(builder, wide)))
        with cgutils.for_range_slice(builder, _WORD(0), builder.and_(width, _WORD(-4)), _WORD(4)) as (f, _):
            # The four rows are contiguous; each turn fetches a quarter of a later four.
            later = builder.add(builder.mul(f, _WORD(4)), _WORD(ROWS_AHEAD))
            _fetch(builder, builder.gep(own[0], [later]), 2 * _LINE)
            for row, there, (low, high) in zip(rows, own, sums, strict=True):
                entry = builder.sext(_read(builder, builder.gep(row, [f], inbounds=True), _SHORT, 4), wide)
                lower, upper = _halves(builder, _read(builder, builder.gep(there, [f], inbounds=True), _WORD, 4))
                builder.store(builder.add(builder.load(low), builder.mul(entry, lower)), low)
                builder.store(builder.add(builder.load(high), builder.mul(entry, upper)), high)
        totals = [
            builder.add(builder.load(low), builder.shl(builder.load(high), _all(_WORD, 4, 32))) for low, high in sums
        ]
        pairs = [
            builder.add(*(_picked(builder, one, other, [at, at + 4, at + 2, at + 6]) for at in (0, 1)))
            for one, other in (totals[:2], totals[2:])
        ]
        one, other = pairs
        found = builder.add(*(_picked(builder, one, other, [at, at + 1, at + 4, at + 5]) for at in (0, 2)))
        _write(builder, _address(context, builder, out, args[4], args[3]), found)
        return context.get_dummy_value()

    return types.void(table, angles, words, types.int64, out), code


def _halves(builder: ir.IRBuilder, words: ir.Value) -> tuple[ir.Value, ir.Value]:
    """Return vectors l and h of signed 32-bit integers, as 64 bits, with words = l + 2^32·h modulo 2^64."""
    count = words.type.count
    by = _all(_WORD, count, 32)
    lower = builder.ashr(builder.shl(words, by), by)
    upper = builder.lshr(builder.add(words, _all(_WORD, count, 1 << 31)), by)
    return lower, builder.ashr(builder.shl(upper, by), by)


@inline
def add_words(
    _context: BaseContext,
    columns: types.Array,
    _j: types.Type,
    _k: types.Type,
    words: types.Array,
    _i: types.Type,
    totals: types.Array,
) -> tuple[Signature, Code]:
    """Add the products of a block of columns j and k with its words to totals[j] and totals[j + 1]; all are words.

    The WORDS records begin at i. totals : (s + 1, 8) int64. A product modulo 2^64 consists of the product of the lower halves
    and two products of a lower with an upper half.
    """

    def code(context: BaseContext, builder: ir.IRBuilder, _signature: Signature, args: list[ir.Value]) -> ir.Value:
        wide, lanes, by = _vector(_WORD, 4), 4, _all(_WORD, 4, 32)
        mask = _all(_WORD, lanes, 0xFFFFFFFF)
        sources = [_address(context, builder, columns, args[0], j, args[4]) for j in args[1:3]]
        multipliers = _address(context, builder, words, args[3], args[4])
        sums = [(_sum(builder, wide), _sum(builder, wide), _sum(builder, wide)) for _ in sources]
        with cgutils.for_range_slice(builder, _WORD(0), _WORD(WORDS), _WORD(8)) as (first, _):
            for source in sources:
                _fetch(builder, builder.gep(source, [builder.add(first, _WORD(WORDS_AHEAD))]), 1)
            for part in (0, 4):
                record = builder.add(first, _WORD(part))
                word = _read(builder, builder.gep(multipliers, [record], inbounds=True), _WORD, lanes)
                lower, upper = builder.and_(word, mask), builder.lshr(word, by)
                for source, own in zip(sources, sums, strict=True):
                    cell = _read(builder, builder.gep(source, [record], inbounds=True), _WORD, lanes)
                    low, high = builder.and_(cell, mask), builder.lshr(cell, by)
                    for variable, left, right in zip(own, (low, low, high), (lower, upper, lower), strict=True):
                        builder.store(builder.add(builder.load(variable), builder.mul(left, right)), variable)
        for place, own in enumerate(sums):
            target = _address(context, builder, totals, args[5], builder.add(args[1], _WORD(place)), _WORD(0))
            low, first_cross, other = (builder.load(variable) for variable in own)
            total = builder.add(low, builder.shl(builder.add(first_cross, other), by))
            _write(builder, target, builder.add(_read(builder, target, _WORD, lanes), total))
        return context.get_dummy_value()

    return types.void(columns, types.int64, types.int64, words, types.int64, totals), code
