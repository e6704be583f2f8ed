"""scikit-learn transformers for columns of numbers, truth values and categories."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from vfl.columns import Boolean, Categorical, Numeric, canonical_category

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from vfl.columns import Category


def function_step(function: Any, **arguments: Any) -> Any:
    """Return a transformer that calls a function with these keyword arguments."""
    from sklearn.preprocessing import FunctionTransformer

    return FunctionTransformer(function, kw_args=arguments or None, feature_names_out="one-to-one")


def cells_step(forms: Mapping[Any, Any], pd: Any) -> list[Any]:
    """Return transformers that strip text and replace each spelling of a cell by the declared cell; NaN if missing."""
    frame = pd.DataFrame
    own = {form: cell for form, cell in forms.items() if type(form) is not type(cell) or form != cell}
    return [
        function_step(frame.astype, dtype=object),
        function_step(frame.replace, to_replace=r"^\s+|\s+$", value="", regex=True),
        *([function_step(frame.replace, to_replace=list(own), value=list(own.values()))] if own else []),
        function_step(frame.fillna, value=np.nan),
    ]


def spellings(categories: Sequence[Category]) -> dict[Any, Any]:
    """Return {cell: category} for all cells that a party reads as a category (parties.storage.cells.lookup).

    pandas reads whole numbers with gaps as floats, codes as integers, and TRUE as a truth value.
    """
    numeric = all(isinstance(c, int | float) and not isinstance(c, bool) for c in categories)
    found: dict[Any, Any] = {}
    for category in categories:
        text = canonical_category(category)
        if numeric:
            found |= dict.fromkeys([text, repr(float(category)), repr(category)], category)
            continue
        found[text] = category
        number = _number(text)
        if number is not None and canonical_category(number) == text:
            found[number] = category
        if text in ("true", "false"):
            found[text == "true"] = category
    return found


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


TRUTHS = dict.fromkeys(("true", "True", "TRUE", "1"), 1.0) | dict.fromkeys(("false", "False", "FALSE", "0"), 0.0)
"""Spellings of truth values that a party reads."""


def plain_steps(column: str, declared: Numeric | Boolean | Categorical, pd: Any) -> tuple[list[Any], list[str]]:
    """Return the transformers of a column and the names of the coordinates they make, without the missing indicator."""
    frame = pd.DataFrame
    if isinstance(declared, Categorical):
        return _categories(column, declared, pd)
    steps = cells_step(TRUTHS, pd) if isinstance(declared, Boolean) else [function_step(frame.fillna, value=np.nan)]
    steps.append(function_step(frame.astype, dtype=float))
    if isinstance(declared, Numeric) and declared.bounds is not None:
        steps.append(function_step(frame.clip, lower=declared.bounds[0], upper=declared.bounds[1]))
    if declared.instead is not None:
        steps.append(function_step(frame.fillna, value=declared.instead))
    return steps, [column]


def _categories(column: str, declared: Categorical, pd: Any) -> tuple[list[Any], list[str]]:
    """Return the one-hot encoder and its coordinates; scikit-learn wants numeric categories in ascending order."""
    from sklearn.preprocessing import OneHotEncoder

    listed: list[tuple[Category, str]] = list(zip(declared.categories, declared.features(column), strict=False))
    if all(isinstance(category, int | float) for category in declared.categories):
        listed.sort()
    categories: list[Any] = [category for category, _ in listed]
    names = [name for _, name in listed]
    steps = cells_step(spellings(declared.categories), pd)
    if declared.missing is not None and declared.fill is None:
        categories, names = [*categories, np.nan], [*names, f"{column}=(missing)"]
    elif declared.fill is not None:
        steps.append(function_step(pd.DataFrame.fillna, value=declared.fill))
    kind = float if all(isinstance(c, int | float) for c in declared.categories) else object
    encoder = OneHotEncoder(
        categories=[np.array(categories, dtype=kind)],
        handle_unknown="error" if declared.unknown == "refuse" else "ignore",
        sparse_output=False,
    )
    return [*steps, encoder], names
