import pytest

from server_app.report import words as say


@pytest.mark.parametrize(
    ("count", "words"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1 kB"),
        (12_345, "12.3 kB"),
        (999_600, "1 MB"),
        (1e12, "1 TB"),
    ],
)
def test_byte_size_in_words(count, words):
    assert say.byte_size(count) == words


@pytest.mark.parametrize(
    ("joules", "words"), [(0.0, "0 J"), (0.0421, "0.0421 J"), (999.6, "1 kJ"), (3.6e6, "3.6 MJ")]
)
def test_joules_in_words(joules, words):
    assert say.joules_in_words(joules) == words
