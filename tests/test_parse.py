"""Numbers, truth values and names are read as people write them."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sihg.parse import Value, coerce, parse_bool, parse_int, parse_literal, parse_names, parse_number
from tests.refused import refused


@pytest.mark.parametrize(
    ("value", "number"),
    [
        ("8/255", 8 / 255),
        (" 1/4 ", 0.25),
        ("-1/3", -1 / 3),
        ("1e-3", 0.001),
        ("inf", math.inf),
        (3, 3.0),
        (0.1, 0.1),
        (np.float32(0.1), float(np.float32(0.1))),  # its value, not its text
        (np.int64(7), 7.0),
    ],
)
def test_numbers(value: object, number: float) -> None:
    found = parse_number(value)
    assert (type(found), found) == (float, number)


@pytest.mark.parametrize("value", ["", "a", "1/0", "1/", "8/255/2", "1,5", True, None, [1], 10**400, f"{10**400}/1"])
def test_other_values_are_not_numbers(value: object) -> None:
    with refused("not-a-number", value=value):
        parse_number(value, "eps")


@given(number=st.integers())
def test_integers_of_any_size_stay_exact(number: int) -> None:
    assert parse_int(number) == parse_int(str(number)) == parse_int(f" {number} ") == number


@pytest.mark.parametrize(("value", "number"), [("1e5", 100_000), (2.0, 2), ("6/3", 2), (np.int8(5), 5), ("+4", 4)])
def test_integers_in_other_forms(value: object, number: int) -> None:
    found = parse_int(value)
    assert (type(found), found) == (int, number)


@pytest.mark.parametrize("value", [0.5, "1/3", "nan", "inf", math.inf])
def test_fractions_are_not_integers(value: object) -> None:
    with refused("not-an-integer"):
        parse_int(value)
    with refused("not-a-number"):
        parse_int(True)


def test_truth_values() -> None:
    assert [parse_bool(value) for value in (True, "true", "Yes", False, "FALSE", "no")] == [True] * 3 + [False] * 3
    for value in (1, 0, "", "on", None):
        with refused("not-a-bool", value=value):
            parse_bool(value)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("true", True),
        ("False", False),
        ("yes", "yes"),  # a name can be yes
        ("20", 20),
        ("2e1", 20.0),
        ("1/4", 0.25),
        ("1/0", "1/0"),
        ("[[0, 0], ['1/2', true]]", [[0, 0], [0.5, True]]),
        ("adam", "adam"),
        ("", ""),
    ],
)
def test_literals_by_their_looks(text: Value, value: Value) -> None:
    found = parse_literal(text)
    assert (type(found), found) == (type(value), value)
    assert parse_literal(found) == value


def test_a_list_that_does_not_end_is_refused() -> None:
    with refused("not-a-list", value="[1, 2"):
        parse_literal("[1, 2")


@pytest.mark.parametrize(
    ("kind", "value", "found"),
    [
        (int, "1e2", 100),
        (float | None, "none", None),
        (float | None, None, None),
        (str, "none", "none"),
        (str | None, "None", None),
        (tuple[float, int], "1/2, 3", (0.5, 3)),
        (tuple[float, float] | None, [0, 1], (0.0, 1.0)),
        (list[float], "[1, 2]", [1, 2]),
    ],
)
def test_values_become_the_declared_type(kind: Any, value: object, found: object) -> None:
    assert coerce(kind, value) == found


def test_values_of_another_type_are_refused() -> None:
    with refused("none-not-allowed", name="lr"):
        coerce(float, "none", "lr")
    for value in ("0", "0,1,2", 5):
        with refused("number-of-values", name="bounds"):
            coerce(tuple[float, float], value, "bounds")
    with refused("not-a-number", value="a"):
        coerce(tuple[float, float], "a,1")


def test_names_come_once_and_in_order() -> None:
    assert parse_names(" b,a,, b ,c") == parse_names(["b", "a ", "b", "", "c"]) == ["b", "a", "c"]
    assert parse_names("") == []
