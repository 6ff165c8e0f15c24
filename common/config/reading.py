"""Reading of settings: TOML files, ``key=value`` words and Flower's run-config."""

import functools
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from common.config.settings import Settings
from common.errors import ConfigError
from common.plugins import Table
from common.schema import Scalar, kebab_case
from common.text_files import read_text


def load(
    file: Path | None,
    words: Iterable[str] = (),
    defaults: Mapping[str, Scalar] = MappingProxyType({}),
) -> Settings:
    """Return the defaults, changed by a TOML file, changed by ``key=value`` words.

    ``defaults`` (kebab-case) go before those of the schema.
    """
    values: dict[str, object] = dict(defaults)
    if file is not None:
        values |= read_toml(file)
    pairs = [split_word(word) for word in words]
    twice = sorted({key for key, _ in pairs if sum(key == other for other, _ in pairs) > 1})
    if twice:
        raise ConfigError(f"{twice[0]} is given twice; give each setting once")
    return Settings.parse(values | dict(pairs))


def from_run_config(run_config: Mapping[str, Scalar]) -> Settings:
    """Return the settings in Flower's run-config; equal configs share one parsed object."""
    return _from_items(tuple(sorted(run_config.items())), Table.changes)


@functools.lru_cache(maxsize=8)
def _from_items(items: tuple[tuple[str, Scalar], ...], changes: int) -> Settings:
    # Parsed once per process and not once per message; anew where pieces have come since.
    return Settings.parse(dict(items), source="run-config")


def is_setting(word: str) -> bool:
    """Return whether a word is a setting ``key=value``, and no file of such a name."""
    key, equals, _ = word.partition("=")
    names = map(kebab_case, Settings.fields())
    return bool(equals) and (key.strip() in names or not Path(word).exists())


def split_word(word: str) -> tuple[str, str]:
    """Return the key and the value of a word ``key=value``."""
    key, equals, value = word.partition("=")
    if not equals or not key:
        raise ConfigError(f"{word!r} is not a setting; write key=value, for example num-clients=20")
    return key.strip(), value.strip()


def read_toml(file: Path) -> dict[str, Any]:
    """Return a TOML file's content; a :class:`ConfigError` if it cannot be read."""
    try:
        return tomllib.loads(read_text(file))
    except OSError as error:
        raise ConfigError(f"cannot read {file}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file} is not a TOML file: {error}") from None
