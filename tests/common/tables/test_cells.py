"""Cells: which texts are numbers, held against Python's own reading of them."""

import datetime
import math

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from common.tables import cells


@given(st.lists(st.floats(allow_nan=False, width=64), min_size=1))
def test_what_python_writes_is_read_to_the_bit(numbers):
    assert cells.numbers(pa.array([repr(n) for n in numbers])).tolist() == numbers


@given(st.lists(st.text("0123456789.,eE+-_ xinf", max_size=8), min_size=1))
def test_no_text_is_a_number_that_is_none_in_python(texts):
    found = cells.numbers(pa.array(texts))
    for text, number in zip(texts, found, strict=True):
        if not math.isnan(number):
            assert float(text) == number
            assert "_" not in text


@pytest.mark.parametrize(
    "text", ["1_0", "0x10", "1,5", " 1", "1d", "--1", "", ".", "\N{ARABIC-INDIC DIGIT ONE}"]
)
def test_what_only_looks_like_a_number_is_none(text):
    assert math.isnan(cells.numbers(pa.array([text, "2"]))[0])


def test_a_decimal_comma_is_read_where_it_is_said():
    found = cells.numbers(pa.array(["1,5", "-,25", "3", "1.5", "1,234.5"]), ",")
    np.testing.assert_array_equal(found, [1.5, -0.25, 3, np.nan, np.nan])


def test_typed_columns_are_numbers_and_dates_are_days():
    day = datetime.date(1970, 1, 3)
    noon = datetime.datetime(1970, 1, 3, 12, tzinfo=datetime.UTC)
    np.testing.assert_array_equal(cells.numbers(pa.array([day, None])), [2, np.nan])
    np.testing.assert_array_equal(cells.numbers(pa.array([noon])), [2.5])
    np.testing.assert_array_equal(cells.numbers(pa.array([True, None, False])), [1, np.nan, 0])


@settings(max_examples=20)
@pytest.mark.parametrize("written", cells.DATE_FORMATS)
@given(day=st.datetimes(datetime.datetime(1900, 1, 1), datetime.datetime(2099, 12, 31)))
def test_dates_are_days_since_1970(written, day):
    kept = datetime.datetime.strptime(day.strftime(written), written)
    [found] = cells.dates(pa.array([day.strftime(written)]), written)
    assert found == (kept - datetime.datetime(1970, 1, 1)).total_seconds() / 86400


def test_marks_become_null_and_words_what_they_mean():
    column = pa.array(["M", "NA", "male", "?"])
    known = cells.without(column, {"NA"})
    assert known.to_pylist() == ["M", None, "male", "?"]
    assert cells.meant(known, {"M": "male"}).to_pylist() == ["male", None, "male", "?"]
