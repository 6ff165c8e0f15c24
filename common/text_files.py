"""Text files of people and their editors, whatever byte order mark these put before the text."""

import codecs
from pathlib import Path

__all__ = ["read_text"]

_MARKS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)


def read_text(path: Path) -> str:
    r"""Return a file's text without a byte order mark, its lines ended by ``\n``.

    It is UTF-8 unless the mark says UTF-16, as Windows PowerShell writes what is sent into a file.

    Raises:
        OSError: it cannot be read.
        UnicodeDecodeError: it is no text of that encoding.
    """
    content = path.read_bytes()
    encoding = next((name for mark, name in _MARKS if content.startswith(mark)), "utf-8")
    return content.decode(encoding).replace("\r\n", "\n")
