"""Operations that Numba lacks, written as LLVM instructions: vectors of records, sums of bits, and prefetches.

Only this module and vfl.kernels.curve contain hand-made LLVM code. With the plain operations of vfl.kernels.plain, the loops
return identical integers, but take 5 to 11 times as long (AVX-512, 1 to 8 columns). Loops for single columns without vectors of
records took 1.6 to 2.2 times as long. `vfl.kernels.records` chooses between the two modules.

In this module, a number is either a float64 for one record, or a `Lanes` for WIDTH consecutive records, which fills one or more
vector registers. Every operation is the IEEE operation on each lane, so both forms give the same result for a record.
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any, cast

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic, models, overload, register_model

if TYPE_CHECKING:
    from collections.abc import Callable

    from numba.core.base import BaseContext
    from numba.core.datamodel import DataModelManager
    from numba.core.typing.templates import Signature

    Code = Callable[[BaseContext, ir.IRBuilder, Signature, list[ir.Value]], ir.Value]

inline = cast("Callable[[Callable[..., tuple[Signature, Code]]], Callable[..., Any]]", intrinsic)

WIDTH = 32
"""Number of records per `Lanes`: large enough to keep several registers busy in a long chain of operations (a sigmoid and a
clip), and small enough that a hundred columns stay in the first-level cache."""

SUMS = 8
"""Number of partial sums per column. Lane k is added to the partial sum of number k modulo SUMS."""

_LINE = 64
_WORD, _DOUBLE, _SINGLE, _INDEX, _BYTE = ir.IntType(64), ir.DoubleType(), ir.FloatType(), ir.IntType(32), ir.IntType(8)
_WIDE = ir.VectorType(_DOUBLE, WIDTH)


class Lanes(types.Type):  # type: ignore[misc]
    """Numba type of a number for each of WIDTH records."""

    def __init__(self) -> None:
        super().__init__("Lanes")


LANES = Lanes()


@register_model(Lanes)
class _Model(models.PrimitiveModel):  # type: ignore[misc]
    def __init__(self, manager: DataModelManager, kind: Lanes) -> None:
        super().__init__(manager, kind, _WIDE)


def _is_number(kind: types.Type) -> bool:
    return isinstance(kind, Lanes | types.Float)


def _either(*kinds: types.Type) -> types.Type:
    return LANES if any(isinstance(kind, Lanes) for kind in kinds) else types.float64


def _filled(builder: ir.IRBuilder, x: ir.Value) -> ir.Value:
    wide = ir.VectorType(x.type, WIDTH)
    first = builder.insert_element(ir.Constant(wide, ir.Undefined), x, _INDEX(0))
    return builder.shuffle_vector(first, first, ir.Constant(ir.VectorType(_INDEX, WIDTH), [0] * WIDTH))


def _like(builder: ir.IRBuilder, result: types.Type, signature: Signature, args: list[ir.Value]) -> list[ir.Value]:
    """Return the arguments. If the result has lanes, a single number among the arguments is copied to all lanes."""
    wide = isinstance(result, Lanes)
    return [
        _filled(builder, arg) if wide and not isinstance(kind, Lanes) else arg
        for kind, arg in zip(signature.args, args, strict=True)
    ]


def _arithmetic(operation: Any, instruction: str) -> None:
    @inline
    def apply(_context: BaseContext, a: types.Type, b: types.Type) -> tuple[Signature, Code]:
        def code(_context: BaseContext, builder: ir.IRBuilder, signature: Signature, args: list[ir.Value]) -> ir.Value:
            return getattr(builder, instruction)(*_like(builder, LANES, signature, args))

        return LANES(_lane(a), _lane(b)), code

    def choose(a, b):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202 - numba wants the lambda's signature
        if isinstance(_either(a, b), Lanes) and _is_number(a) and _is_number(b):
            return lambda a, b: apply(a, b)  # noqa: PLW0108 - numba compiles a function of Python, not an intrinsic
        return None

    overload(operation)(choose)


def _lane(kind: types.Type) -> types.Type:
    return kind if isinstance(kind, Lanes) else types.float64


for _operation, _instruction in (
    (operator.add, "fadd"),
    (operator.sub, "fsub"),
    (operator.mul, "fmul"),
    (operator.truediv, "fdiv"),
):
    _arithmetic(_operation, _instruction)


@inline
def lanes(_context: BaseContext) -> tuple[Signature, Code]:
    """Return a zero in every lane."""

    def code(_context: BaseContext, _builder: ir.IRBuilder, _signature: Signature, _args: list[ir.Value]) -> ir.Value:
        return ir.Constant(_WIDE, [0.0] * WIDTH)

    return LANES(), code


@inline
def at_least(
    _context: BaseContext, a: types.Type, b: types.Type, then: types.Type, other: types.Type
) -> tuple[Signature, Code]:
    """Return `then` where a ≥ b, else `other`. Where a or b is NaN, return `other`."""
    result = _either(a, b, then, other)

    def code(_context: BaseContext, builder: ir.IRBuilder, signature: Signature, args: list[ir.Value]) -> ir.Value:
        x, y, yes, no = _like(builder, result, signature, args)
        return builder.select(builder.fcmp_ordered(">=", x, y), yes, no)

    return result(*(_lane(kind) for kind in (a, b, then, other))), code


@inline
def align_stack(_context: BaseContext) -> tuple[Signature, Code]:
    """Align the stack of a loop to the width of its vector registers.

    By default, the compiler aligns the stack to 16 bytes. In some processes, every second register saved there then crosses a
    cache line, and a sigmoid takes up to twice as long.
    """

    def code(context: BaseContext, builder: ir.IRBuilder, _signature: Signature, _args: list[ir.Value]) -> ir.Value:
        with builder.goto_entry_block():
            kept = builder.alloca(ir.VectorType(_DOUBLE, 4))
            kept.align = 32
        builder.asm(ir.FunctionType(ir.VoidType(), [kept.type]), "", "r", [kept], side_effect=True)
        return context.get_dummy_value()

    return types.void(), code


def _extreme(sign: str) -> Any:
    """Return the operation for the minimum or maximum of two numbers. It is one instruction on every machine."""

    @inline
    def choose(_context: BaseContext, a: types.Type, b: types.Type) -> tuple[Signature, Code]:
        result = _either(a, b)

        def code(_context: BaseContext, builder: ir.IRBuilder, signature: Signature, args: list[ir.Value]) -> ir.Value:
            x, y = _like(builder, result, signature, args)
            return builder.select(builder.fcmp_ordered(sign, x, y), x, y)

        return result(_lane(a), _lane(b)), code

    return choose


least = _extreme("<")
"""least(a, b): a where a < b, else b. Where a or b is NaN, the result is b."""

most = _extreme(">")
"""most(a, b): a where a > b, else b. Where a or b is NaN, the result is b."""


def _bits(kind: types.Type, value: int | None = None) -> Any:
    """Return the integer type of a number's bits, in every lane; with `value`, return this constant of that type."""
    wide = isinstance(kind, Lanes)
    bits = ir.VectorType(_WORD, WIDTH) if wide else _WORD
    return bits if value is None else ir.Constant(bits, [value] * WIDTH if wide else value)


@inline
def signed_by(_context: BaseContext, x: types.Type, sign: types.Type) -> tuple[Signature, Code]:
    """Return x with its sign changed where the sign bit of `sign` is set."""

    def code(_context: BaseContext, builder: ir.IRBuilder, _signature: Signature, args: list[ir.Value]) -> ir.Value:
        number, by = (builder.bitcast(arg, _bits(x)) for arg in args)
        return builder.bitcast(builder.xor(number, builder.and_(by, _bits(x, 1 << 63))), args[0].type)

    return x(x, sign), code


@inline
def magnitude(_context: BaseContext, x: types.Type) -> tuple[Signature, Code]:
    """Return x without its sign."""

    def code(_context: BaseContext, builder: ir.IRBuilder, _signature: Signature, args: list[ir.Value]) -> ir.Value:
        bits = builder.and_(builder.bitcast(args[0], _bits(x)), _bits(x, (1 << 63) - 1))
        return builder.bitcast(bits, args[0].type)

    return x(x), code


@inline
def root(_context: BaseContext, x: types.Type) -> tuple[Signature, Code]:
    """Return √x."""

    def code(_context: BaseContext, builder: ir.IRBuilder, _signature: Signature, args: list[ir.Value]) -> ir.Value:
        kind, name = (_WIDE, f"llvm.sqrt.v{WIDTH}f64") if isinstance(x, Lanes) else (_DOUBLE, "llvm.sqrt.f64")
        function = cgutils.get_or_insert_function(builder.module, ir.FunctionType(kind, [kind]), name)
        return builder.call(function, args)

    return x(x), code


@inline
def power_of_two(_context: BaseContext, k: types.Type) -> tuple[Signature, Code]:
    """Return 2^k for k given as k + 1023 + MAGIC, −1022 ≤ k ≤ 1024 (the last gives infinity)."""

    def code(_context: BaseContext, builder: ir.IRBuilder, _signature: Signature, args: list[ir.Value]) -> ir.Value:
        return builder.bitcast(builder.shl(builder.bitcast(args[0], _bits(k)), _bits(k, 52)), args[0].type)

    return k(k), code


def _entry(context: BaseContext, builder: ir.IRBuilder, kind: types.Array, array: ir.Value, *at: ir.Value) -> ir.Value:
    unpacked = context.make_array(kind)(context, builder, array)
    offset = at[-1]
    if len(at) == 2:
        offset = builder.add(builder.mul(at[0], builder.extract_value(unpacked.shape, 1)), offset)
    return builder.gep(unpacked.data, [offset])


def _numbers(builder: ir.IRBuilder, address: ir.Value, element: types.Type, like: types.Type) -> ir.Value:
    number = _DOUBLE if element == types.float64 else _SINGLE
    if not isinstance(like, Lanes):
        value = builder.load(address)
        return value if number is _DOUBLE else builder.fpext(value, _DOUBLE)
    there = builder.bitcast(address, ir.VectorType(number, WIDTH).as_pointer())
    value = builder.load(there, align=element.bitwidth // 8)
    return value if number is _DOUBLE else builder.fpext(value, _WIDE)


def _prefetch(builder: ir.IRBuilder, address: ir.Value, size: int, level: int = 2) -> None:
    """Prefetch `size` bytes from an address into a cache. level : 3 for the first-level cache. The address may be invalid."""
    pointer = _BYTE.as_pointer()
    kind = ir.FunctionType(ir.VoidType(), [pointer, _INDEX, _INDEX, _INDEX])
    prefetch = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
    start = builder.bitcast(address, pointer)
    for line in range(0, size, _LINE):
        builder.call(prefetch, [builder.gep(start, [_WORD(line)]), _INDEX(0), _INDEX(level), _INDEX(1)])


@inline
def cells(
    _context: BaseContext, columns: types.Array, _j: types.Type, _i: types.Type, like: types.Type
) -> tuple[Signature, Code]:
    """Return columns[j, i], or the WIDTH cells from i on if `like` is lanes() rather than 0.0. Bounds are not checked."""

    def code(context: BaseContext, builder: ir.IRBuilder, _signature: Signature, args: list[ir.Value]) -> ir.Value:
        return _numbers(builder, _entry(context, builder, columns, *args[:3]), columns.dtype, like)

    return like(columns, types.int64, types.int64, like), code


@inline
def entries(_context: BaseContext, vector: types.Array, _i: types.Type, like: types.Type) -> tuple[Signature, Code]:
    """Return vector[i], or the WIDTH entries from i on if `like` is lanes() rather than 0.0. Bounds are not checked."""

    def code(context: BaseContext, builder: ir.IRBuilder, _signature: Signature, args: list[ir.Value]) -> ir.Value:
        return _numbers(builder, _entry(context, builder, vector, *args[:2]), vector.dtype, like)

    return like(vector, types.int64, like), code


@inline
def put(_context: BaseContext, vector: types.Array, _i: types.Type, x: types.Type) -> tuple[Signature, Code]:
    """Write x to vector[i]; if x has lanes, to the WIDTH entries from i on. Bounds are not checked."""

    def code(context: BaseContext, builder: ir.IRBuilder, _signature: Signature, args: list[ir.Value]) -> ir.Value:
        there = _entry(context, builder, vector, *args[:2])
        builder.store(args[2], builder.bitcast(there, args[2].type.as_pointer()), align=8)
        return context.get_dummy_value()

    return types.void(vector, types.int64, x), code


@inline
def add_to(_context: BaseContext, sums: types.Array, _j: types.Type, x: types.Type) -> tuple[Signature, Code]:
    """Add x to row j of sums, (s, SUMS): as a number if sums are float64, as bits modulo 2⁶⁴ if sums are int64."""

    def code(context: BaseContext, builder: ir.IRBuilder, _signature: Signature, args: list[ir.Value]) -> ir.Value:
        whole = sums.dtype == types.int64
        number, plus = (_WORD, builder.add) if whole else (_DOUBLE, builder.fadd)
        there = _entry(context, builder, sums, args[0], args[1], _WORD(0))
        if not isinstance(x, Lanes):
            builder.store(plus(builder.load(there), builder.bitcast(args[2], number)), there)
            return context.get_dummy_value()
        there = builder.bitcast(there, ir.VectorType(number, SUMS).as_pointer())
        wide, total = builder.bitcast(args[2], ir.VectorType(number, WIDTH)), builder.load(there, align=8)
        for first in range(0, WIDTH, SUMS):
            some = ir.Constant(ir.VectorType(_INDEX, SUMS), list(range(first, first + SUMS)))
            total = plus(total, builder.shuffle_vector(wide, wide, some))
        builder.store(total, there, align=8)
        return context.get_dummy_value()

    return types.void(sums, types.int64, x), code


@inline
def fetch(
    _context: BaseContext, columns: types.Array, _j: types.Type, _i: types.Type, like: types.Type
) -> tuple[Signature, Code]:
    """Prefetch columns[j, i] for the WIDTH records from i on, into the second-level cache. The records need not exist."""

    def code(context: BaseContext, builder: ir.IRBuilder, _signature: Signature, args: list[ir.Value]) -> ir.Value:
        if isinstance(like, Lanes):
            _prefetch(builder, _entry(context, builder, columns, *args[:3]), WIDTH * columns.dtype.bitwidth // 8)
        return context.get_dummy_value()

    return types.void(columns, types.int64, types.int64, like), code


@inline
def fetch_row(_context: BaseContext, table: types.Array, _row: types.Type) -> tuple[Signature, Code]:
    """Prefetch the first and the last entry of a row of a table into the first-level cache."""

    def code(context: BaseContext, builder: ir.IRBuilder, _signature: Signature, args: list[ir.Value]) -> ir.Value:
        width = builder.extract_value(context.make_array(table)(context, builder, args[0]).shape, 1)
        first = _entry(context, builder, table, *args, _WORD(0))
        for entry in (first, builder.gep(first, [builder.sub(width, _WORD(1))])):
            _prefetch(builder, entry, 1, level=3)
        return context.get_dummy_value()

    return types.void(table, types.int64), code
