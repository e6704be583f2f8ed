"""Export of a result as an ONNX graph in double precision, for onnxruntime and other servers.

Each column is an input (n, 1). Numbers, booleans (1 and 0), categories that are all numbers, and dates (in seconds since
1970, as written) are doubles, NaN if missing. All other columns are text, empty if missing. The outputs, (n, 1) each, are
'margin', 'probability' (of the positive class, if margins are log-odds) and, with two classes, 'positive'. A margin is NaN
where `predict` refuses a cell. Hashed columns need onnxruntime, because the graph uses its operator MurmurHash3.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import numpy as np

from vfl.arguments import package
from vfl.errors import SpecificationError
from vfl.features.formula import BLANK, Apply, Case, Cell
from vfl.launch.run.parts import reach_of, sum_of

if TYPE_CHECKING:
    from vfl.features.formula import Condition, Formula
    from vfl.launch.run.model import Model

OPSET = 20
_OPERATORS = {
    "add": "Add",
    "subtract": "Sub",
    "multiply": "Mul",
    "divide": "Div",
    "power": "Pow",
    "log": "Log",
    "floor": "Floor",
    "sin": "Sin",
}
_INPUTS = {"text": "text", "hash": "text", "date": "date"}
_SAID = {
    "text": "text; empty if missing",
    "date": "date and time as written, without its time zone, in seconds since 1970-01-01; NaN if missing",
    "number": "number; 1 and 0 for true and false; NaN if missing",
}
"""Documentation of an input of the graph, by its form."""
_OF_ONNXRUNTIME = "com.microsoft"


def onnx_of(result: Model, party: str | None = None) -> bytes:
    """Return the bytes of the graph. party : party whose part of the margin the graph computes, as output 'margin_part'.

    Raises SpecificationError if onnx is not installed, and the errors of `sum_of`.
    """
    onnx = package("onnx", "onnx", "an ONNX export")
    own, graph = sum_of(result, party), _Graph(onnx.helper)
    named: dict[str, str] = {}
    for cell in own.cells:
        form = _INPUTS.get(cell.content, "number")
        if named.setdefault(cell.column, form) != form:
            raise SpecificationError(
                f"column {cell.column!r} is read as {named[cell.column]} and as {form}, which one ONNX input cannot be: "
                "export to SQL or scikit-learn"
            )
    for shared, formula in own.made.items():
        graph.shared[shared] = graph.of(formula)
    total = graph.constant(own.constant)
    for weight, formula in own.terms:
        total = graph.node("Add", total, graph.node("Mul", graph.constant(weight), graph.of(formula)))
    for guard in own.guards:
        total = graph.node("Add", total, graph.of(guard))
    outputs = [("margin" if party is None else "margin_part", onnx.TensorProto.DOUBLE, total)]
    loss = result.job.response
    if party is None and loss.log_odds:
        outputs.append(("probability", onnx.TensorProto.DOUBLE, graph.node("Sigmoid", total)))
    if party is None and loss.classification:
        cut = graph.constant(result.margin_threshold or 0.0)
        outputs.append(("positive", onnx.TensorProto.BOOL, graph.node("Greater", total, cut)))
    elif party is None and loss.power is not None:
        outputs.append(
            ("prediction", onnx.TensorProto.DOUBLE, graph.node("Exp", graph.clamped(total, *reach_of(loss))))
        )
    for name, _, found in outputs:
        graph.nodes.append(onnx.helper.make_node("Identity", [found], [name]))
    info = onnx.helper.make_tensor_value_info
    kinds = {"text": onnx.TensorProto.STRING}
    drawn = onnx.helper.make_graph(
        graph.nodes,
        result.job.name or "vfl",
        [info(name, kinds.get(form, onnx.TensorProto.DOUBLE), [None, 1], _SAID[form]) for name, form in named.items()],
        [info(name, kind, [None, 1]) for name, kind, _ in outputs],
        graph.constants,
        "; ".join(f"{name}: {_SAID[form]}" for name, form in named.items()),
    )
    versions = {"": OPSET} | ({_OF_ONNXRUNTIME: 1} if any(cell.content == "hash" for cell in own.cells) else {})
    opsets = [onnx.helper.make_opsetid(domain, version) for domain, version in versions.items()]
    model = onnx.helper.make_model(drawn, opset_imports=opsets, ir_version=9)
    onnx.checker.check_model(model)
    return bytes(model.SerializeToString())


class _Graph:
    """Nodes and constants of a graph that is being written. Equal nodes are written only once."""

    def __init__(self, helper: Any) -> None:
        self._helper = helper
        self._made: dict[Any, str] = {}
        self.nodes: list[Any] = []
        self.constants: list[Any] = []
        self.shared: dict[Cell, str] = {}

    def constant(self, value: float | str) -> str:
        key = ("constant", value if isinstance(value, str) else float(value).hex())
        if key not in self._made:
            name = self._made[key] = f"vfl.c{len(self._made)}"
            array = np.array([value.encode()], dtype=object) if isinstance(value, str) else np.array([value])
            kind = 8 if isinstance(value, str) else 11  # TensorProto.STRING and DOUBLE
            self.constants.append(self._helper.make_tensor(name, kind, [1], array.tolist()))
        return self._made[key]

    def node(self, kind: str, *inputs: str, **attributes: Any) -> str:
        key = (kind, inputs, tuple(attributes.items()))
        if key not in self._made:
            name = self._made[key] = f"vfl.n{len(self._made)}"
            self.nodes.append(self._helper.make_node(kind, list(inputs), [name], **attributes))
        return self._made[key]

    def clamped(self, x: str, low: float, high: float) -> str:
        """Return x, clamped to [low, high]. NaN stays NaN."""
        for end, nearer in ((low, "Less"), (high, "Greater")):
            if np.isfinite(end):
                x = self.node("Where", self.node(nearer, x, self.constant(end)), self.constant(end), x)
        return x

    def of(self, formula: Formula) -> str:
        if isinstance(formula, Cell):
            if formula.content == "hash":
                hashed = self.node("MurmurHash3", formula.column, domain=_OF_ONNXRUNTIME, positive=0)
                return self.node("Cast", hashed, to=11)
            return self.shared.get(formula, formula.column)
        if isinstance(formula, Apply):
            args = [self.of(one) for one in formula.args]
            if formula.name == "cos":  # onnxruntime has no cosine of doubles: cos x = 1 − 2 sin²(x/2)
                half = self.node("Sin", self.node("Mul", *args, self.constant(0.5)))
                square = self.node("Mul", self.node("Mul", half, half), self.constant(2.0))
                return self.node("Sub", self.constant(1.0), square)
            if formula.name == "remainder":
                return self.node("Mod", *args, fmod=1)
            return self.node(_OPERATORS[formula.name], *args)
        if isinstance(formula, Case):
            found = self.of(formula.otherwise)
            for condition, one in reversed(formula.cases):
                found = self.node("Where", self._holds(condition), self.of(one), found)
            return found
        return self.constant(formula)

    def _holds(self, condition: Condition) -> str:
        if condition.name == "missing" and isinstance(condition.a, Cell) and _INPUTS.get(condition.a.content) == "text":
            return self.node("RegexFullMatch", condition.a.column, pattern="")
        a = self.of(condition.a)
        if condition.name == "missing":
            return self.node("IsNaN", a)
        if isinstance(condition.b, str):
            return self.node("RegexFullMatch", a, pattern=f"[{BLANK}]*{re.escape(condition.b)}[{BLANK}]*")
        return self.node("Less" if condition.name == "less" else "Equal", a, self.of(condition.b))
