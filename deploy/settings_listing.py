"""Settings listing: every setting under the theme it belongs to, in lines of 80 columns."""

import textwrap
from collections.abc import Iterator
from pkgutil import resolve_name

from pydantic.fields import FieldInfo

from common import plugins
from common.config import Schema, Settings, allowed_values, kebab_case

__all__ = ["listing"]

_WIDTH = 80


def listing() -> Iterator[str]:
    """Yield lines: the themes of all runs first, then what single pieces declare."""
    for theme in reversed(Settings.__bases__):
        yield from _section(theme, _heading(theme))
    for piece in plugins.all_piece_settings():
        yield from _section(piece, f"{_heading(piece)} ({', '.join(_users(piece))})")


def _section(schema: type[Schema], heading: str) -> Iterator[str]:
    yield from textwrap.wrap(heading, _WIDTH)
    for name, field in schema.model_fields.items():
        yield f"  {kebab_case(name)} = {_default(field)}"
        text = f"{field.description} [{allowed_values(field)}]"
        yield from textwrap.wrap(text, _WIDTH, initial_indent=" " * 6, subsequent_indent=" " * 6)
    yield ""


def _heading(schema: type[Schema]) -> str:
    return (schema.__doc__ or schema.__name__).splitlines()[0].rstrip(".")


def _default(field: FieldInfo) -> str:
    if isinstance(field.default, bool):
        return str(field.default).lower()
    return '""' if field.default == "" else str(field.default)


def _users(declared: type[plugins.PieceSettings]) -> Iterator[str]:
    """Yield the settings that name a piece which declares these."""
    for path in plugins.TABLES:
        table = resolve_name(path)
        for name, piece in table.items():
            if declared in plugins.settings_of(piece):
                yield f"{table.kind}={name}"
