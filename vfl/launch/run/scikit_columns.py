"""Columns of numbers, truth values and categories as scikit-learn's transformers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from vfl.schema import Boolean, Categorical, Numeric

if TYPE_CHECKING:
    from vfl.schema import Category


def function_step(function: Any, **arguments: Any) -> Any:
    """Return a transformer that calls a function with these keyword arguments."""
    from sklearn.preprocessing import FunctionTransformer

    return FunctionTransformer(function, kw_args=arguments or None, feature_names_out="one-to-one")


def plain_steps(column: str, declared: Numeric | Boolean | Categorical, pd: Any) -> tuple[list[Any], list[str]]:
    """Return the transformers of a column and the names of the coordinates they make, without the missing indicator."""
    frame = pd.DataFrame
    if isinstance(declared, Categorical):
        return _categories(column, declared, pd)
    steps = [function_step(frame.astype, dtype=float)]
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
    steps = []
    if declared.missing is not None and declared.fill is None:
        steps.append(function_step(pd.DataFrame.fillna, value=np.nan))
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
