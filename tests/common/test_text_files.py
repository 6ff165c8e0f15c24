"""Text files: a byte order mark is no part of the text, and says how it is written."""

import pytest

from common.config import read_toml
from common.errors import ConfigError
from common.text_files import read_text

TEXT = 'name = "Köln"\n'


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
@pytest.mark.parametrize("line_end", ["\n", "\r\n"])
def test_marks_and_line_ends_of_windows_are_no_part_of_the_text(tmp_path, encoding, line_end):
    path = tmp_path / "a.toml"
    path.write_bytes(TEXT.replace("\n", line_end).encode(encoding))
    assert read_text(path) == TEXT
    assert read_toml(path) == {"name": "Köln"}


def test_big_endian_utf_16_is_told_by_its_mark(tmp_path):
    path = tmp_path / "a.toml"
    path.write_bytes(b"\xfe\xff" + TEXT.encode("utf-16-be"))
    assert read_text(path) == TEXT


@pytest.mark.parametrize("content", [b"name = '\xe4'\n", b"\xef\xbb\xbfname = '\xe4'\n"])
def test_what_is_no_text_is_refused_by_name(tmp_path, content):
    path = tmp_path / "a.toml"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=r"a\.toml is not a TOML file"):
        read_toml(path)
