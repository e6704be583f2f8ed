"""X25519 of many points: known answers, agreement with `cryptography`, and no jump or address that depends on data."""

from __future__ import annotations

import json
import platform
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numba
import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

from vfl.kernels.curve import ladder
from vfl.kernels.curve.field import Form

if TYPE_CHECKING:
    from collections.abc import Iterator

    Points = np.ndarray[Any, np.dtype[np.uint8]]

FORMS = list(dict.fromkeys([ladder.form_here(), Form(4, fused=False)]))
VECTORS = json.loads((Path(__file__).parent / "x25519.json").read_text())["vectors"]
X86 = pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="reads the machine code of x86")


def points(*rows: bytes) -> Points:
    return np.frombuffer(b"".join(rows), np.uint8).reshape(-1, 32)


@pytest.mark.parametrize("form", FORMS)
def test_known_answers(form: Form) -> None:
    for number, secret, public, shared in VECTORS:
        product = ladder.multiply(bytes.fromhex(secret), points(bytes.fromhex(public)), form)
        assert product.tobytes().hex() == shared, f"Wycheproof, test {number}"


@pytest.mark.parametrize("form", FORMS)
def test_the_iteration_of_rfc_7748(form: Form) -> None:
    k = u = points((9).to_bytes(32, "little"))
    for count in range(1, 1001):
        k, u = ladder.multiply(k.tobytes(), u, form), k
        if count == 1:
            assert k.tobytes().hex() == "422c8e7a6227d7bca1350b3e2bb7279f7897b87bb6854b783c60e80311ae3079"
    assert k.tobytes().hex() == "684cf59ba83309552800ef566f2f4d3c1c3887c49360e3875f2eb94d99532c51"


@pytest.mark.parametrize("form", FORMS)
def test_random_points_and_every_rest_of_a_vector(form: Form) -> None:
    rng = np.random.default_rng(7)
    for n in range(1, 2 * form.lanes + 2):
        secret, rows = rng.bytes(32), rng.integers(0, 256, (n, 32)).astype(np.uint8)
        key = X25519PrivateKey.from_private_bytes(secret)
        expected = [key.exchange(X25519PublicKey.from_public_bytes(row.tobytes())) for row in rows]
        assert [row.tobytes() for row in ladder.multiply(secret, rows, form)] == expected


@pytest.mark.parametrize("form", FORMS)
def test_extreme_limbs(form: Form) -> None:
    """Points and scalars of long runs of equal bits, which make the largest and smallest limbs."""
    rows = points(
        *(((1 << high) - (1 << low)).to_bytes(32, "little") for high in range(0, 257, 16) for low in range(3, high, 17))
    )
    for secret in (b"\xff" * 32, bytes(32), b"\x55" * 32):
        key = X25519PrivateKey.from_private_bytes(secret)
        expected = [key.exchange(X25519PublicKey.from_public_bytes(row.tobytes())) for row in rows]
        assert [row.tobytes() for row in ladder.multiply(secret, rows, form)] == expected


def data_dependence(assembly: str) -> Iterator[str]:
    """Yield each instruction by which data could reach a jump, an address or a division, in AT&T notation.

    Data are in vector registers. They stay there if no instruction moves them to a general register, and if general
    registers are loaded from the stack alone; jumps must then test counters.
    """
    flags = ""
    for line in re.findall(r"^\t([a-z].*)$", assembly, re.MULTILINE):
        name, _, operands = line.partition("\t")
        memory = re.search(r"\(%(\w+)", operands)
        jump, vector = re.match(r"j(?!mp)", name), re.search(r"%[xyz]mm|%k\d", operands)
        if jump:
            suspect = re.search(r"\(", flags) or not re.match(r"(cmp|test|inc|dec|add|sub)[bwlq]\b", flags)
        elif vector:
            suspect = re.search(r"%[re]\w+$|^\S*(test|comi|gather|scatter)|\([^)]*mm", line)
        else:
            loads = memory and memory[1] not in ("rsp", "rbp", "rip") and not re.match(r"lea|mov.*\)$", line)
            suspect = loads or name.startswith(("call", "div", "idiv"))
        if suspect:
            yield f"{flags}; {line}" if jump else line
        if not vector and not re.match(r"j|mov|lea|push|pop", name):
            flags = line


def assembly_of(function: Any, *given: Any) -> str:
    """Return the machine code of a function compiled for these arguments, without its wrappers."""
    fresh = numba.njit(nogil=True, error_model="numpy")(function)  # code from the cache cannot be inspected
    fresh(*given)
    (assembly,) = fresh.inspect_asm().values()
    found = re.findall(r"^([A-Za-z_][\w.]*):\n(.*?)^\.Lfunc_end", assembly, re.MULTILINE | re.DOTALL)
    (body,) = (code for name, code in found if function.__name__ in name and not re.match(r"_ZN7cpython|cfunc", name))
    return str(body)


@X86
@pytest.mark.parametrize("form", FORMS)
def test_no_jump_and_no_address_depends_on_data(form: Form) -> None:
    words, swaps = np.full((2, 4, form.lanes), 9, np.uint64), np.zeros(255, np.uint64)
    scratch = np.empty((2, 3, len(form.bits), form.lanes), np.uint64)
    found = assembly_of(ladder._multiply.py_func, words, swaps, scratch, (0,) * form.lanes, (0,) * len(form.bits))
    assert list(data_dependence(found)) == []
    assert ("vpmadd52" in found) >= form.fused
    assert len(re.findall(r"^\tj(?!mp)", found, re.MULTILINE)) <= 8, "loops over groups, bits, squarings and groups"


@X86
def test_a_branch_on_data_is_seen() -> None:
    def branching(words: Points, table: Points) -> int:
        total = 0
        for word in words:
            if word & 4:
                total += table[word & 7]
        return total

    assert list(data_dependence(assembly_of(branching, np.zeros(9, np.uint64), np.zeros(8, np.uint64))))
