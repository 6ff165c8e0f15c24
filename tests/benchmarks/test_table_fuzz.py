"""Drawn tables whose truth is known: no column is read as another without a line that says so."""

from collections import Counter

import pytest

from benchmarks import table_fuzz


@pytest.mark.parametrize("first", range(0, 200, 50))
def test_no_column_of_200_tables_is_read_wrong_in_silence(tmp_path, first):
    counts = Counter()
    for seed in range(first, first + 50):
        outcomes = table_fuzz.outcomes(table_fuzz.drawn(seed, tmp_path))
        wrong = {name: said for name, said in outcomes.items() if said.startswith("wrong")}
        assert not wrong, f"table {seed}"
        counts.update(outcomes.values())
    # What is asked is the exception.
    assert counts["read"] > 8 * counts["said"] > 0


def test_a_wrong_number_is_told_from_a_right_one(tmp_path, monkeypatch):
    monkeypatch.setattr("common.tables.profiles.decimal_of", lambda *_: ".")
    monkeypatch.setattr("common.tables.decoding.decimal_of", lambda *_: ".")
    found = [table_fuzz.outcomes(table_fuzz.drawn(seed, tmp_path)) for seed in range(20)]
    assert any(said.startswith("wrong") for outcomes in found for said in outcomes.values())
