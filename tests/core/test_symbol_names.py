"""Sizes that a user gives by the names of a model's dimensions."""

from __future__ import annotations

import pytest

from webmlc.core.errors import InputError
from webmlc.core.symbol_names import symbol_sizes


def test_a_dimension_has_two_names() -> None:
    """A symbol has the name of the model's file, which other tools show, in messages, too."""
    symbols = {"p2o_Dim_1", "batch"}
    assert symbol_sizes({"p2o.Dim.1": 640}, symbols) == {"p2o_Dim_1": 640}
    assert symbol_sizes({"p2o_Dim_1": 640, "batch": 2}, symbols) == {"p2o_Dim_1": 640, "batch": 2}


@pytest.mark.parametrize(
    ("symbols", "known"), [({"rows", "columns"}, "columns, rows"), (set(), "none")]
)
def test_an_unknown_dimension_is_an_error_with_the_known_ones(
    symbols: set[str], known: str
) -> None:
    with pytest.raises(
        InputError, match=f"no dimension is named 'batch'; the model's are: {known}"
    ):
        symbol_sizes({"batch": 2}, symbols)
