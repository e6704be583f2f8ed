"""Errors in the words of the command line: what they say in Python's spelling becomes that of a job file or an option.

An error is written once, for whoever calls from Python; here its spelled-out options are said anew. What is not in the
table is left as it is.
"""

from __future__ import annotations

import re

_OPTIONS = (
    "class_balance|classes|clip|dataset|diagnostics|epsilon|holdout|id|id_kind|intercept|loss|noise|passes|public|sampling|"
    "scaling|smoothness|sparse|step_size|storage|trust|unknown"
)
_START = r"(?<![\w.-])(?<!--set )"
_BARE = r"'(?P<column>[A-Za-z0-9_-]+)'"
_KEY = r"(?P<column>'[^']*'|\"[^\"]*\")"
_CLASSES = (
    'classes = ["NEGATIVE", "POSITIVE"] above the tables of the job file, or --set '
    """'classes=["NEGATIVE", "POSITIVE"]'; numbers may stand bare, [1, 2]"""
)

SPELLINGS: tuple[tuple[str, str], ...] = (
    (r"\bprivacy=None\b", 'privacy = "none"'),
    (rf"{_START}(?P<table>bounds|fill)=\{{{_BARE}: \(lo, hi\)\}}", r"\g<column> = [LOW, HIGH] under [\g<table>]"),
    (rf"{_START}(?P<table>bounds|fill)=\{{{_KEY}: \(lo, hi\)\}}", r"\g<column> = [LOW, HIGH] under [\g<table>]"),
    (rf"{_START}(?P<table>bounds|fill)=\{{{_BARE}: value\}}", r"\g<column> = VALUE under [\g<table>]"),
    (rf"{_START}(?P<table>bounds|fill)=\{{{_KEY}: value\}}", r"\g<column> = VALUE under [\g<table>]"),
    (r"\bsmoothness=\{column: M_j\} in Privacy", "COLUMN = M_j under [privacy.smoothness]"),
    (r"\bsmoothness=\{\.\.\.\}", "COLUMN = M_j under [privacy.smoothness]"),
    (r"\bdeclare classes=\(negative, positive\)", f"declare {_CLASSES}"),
    (r"\bclasses=\(negative, positive\)", 'classes = ["NEGATIVE", "POSITIVE"]'),
    (r"\bCategorical\(\.\.\., unknown='zero'\)", 'unknown = "zero" under [columns.COLUMN]'),
    (r"\bCategorical\((?P<list>\[[^]]*\])\)", r'kind = "categorical" and categories = \g<list> under [columns.COLUMN]'),
    (r"\bpenalty=L2\(strength\)", '[penalty] with kind = "l2" and strength'),
    (r"\bnoise must be None or vfl\.SeededNoise\(seed\)", "noise must be left out, or [privacy.noise] with a seed"),
    (
        r"\bvfl\.Csv\(path, (?P<what>\w+)=\.\.\.\)",
        r"vfl.Csv(path, \g<what>=...) from Python, or save it with commas, as UTF-8",
    ),
    (r"\bgive its dense array \(\.toarray\(\)\)", "store it as a dense table"),
    (r"\buse engine='ray'", "use --engine ray"),
    (r"\bid=\.\.\.", "id = ..."),
    (r"\bwith id=(?=[;,. ]|$)", "with id"),
    (r"\bsparse=\[\.\.\.\]", "sparse = [...]"),
    (r"\bsparse=\['(?P<party>[^']*)'\]", r'sparse = ["\g<party>"]'),
    (rf"{_START}(?P<name>{_OPTIONS})='(?P<value>[^']*)'", r'\g<name> = "\g<value>"'),
    (rf"{_START}(?P<name>{_OPTIONS})=(?P<value>-?(?:inf|nan|[\d.]+(?:e-?\d+)?))\b", r"\g<name> = \g<value>"),
    (r"\b(?P<what>bounds are two numbers )\(lo, hi\)", r"\g<what>[low, high]"),
    (r"\bclasses are \(negative, positive\)", "classes are [negative, positive]"),
    (r"\bbounds \((?P<lo>[^,()]+), (?P<hi>[^,()]+)\)", r"bounds [\g<lo>, \g<hi>]"),
    (r"\breversed: write \((?P<lo>[^,()]+), (?P<hi>[^,()]+)\)", r"reversed: write [\g<lo>, \g<hi>]"),
    (r"\bis a pair \(party, column\)", 'is given as label = ["PARTY", "COLUMN"]'),
    (r"\bno data are given for party '(?P<party>[^']*)'", r"no data are given for party '\g<party>': name its FILE"),
    (r"\blisted without columns: \{'(?P<party>[^']*)': \[\]\}", r"listed without columns: \g<party> = []"),
    (r"\(ledger=\.\.\., or --ledger\)", "(--ledger FILE, or path under [ledger])"),
    (r"\bnot None\b", "not left out"),
    (r"\bnot True\b", "not true"),
    (r"\bnot False\b", "not false"),
)
"""(pattern, in its place), applied in this order."""


def worded(message: str) -> str:
    """Return an error's message as the command line says it."""
    for pattern, spelt in SPELLINGS:
        message = re.sub(pattern, spelt, message)
    return message
