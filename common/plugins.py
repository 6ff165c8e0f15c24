"""Tables of pieces: objectives, methods, networks and the like, by the name a setting gives.

A table begins with the pieces of this repository. Others join it by :meth:`Table.add`, or as entry
points of an installed package in the table's group; both are used like the built-in ones.
"""

import re
from collections.abc import Iterator, Mapping
from functools import cached_property
from importlib.metadata import EntryPoint, entry_points
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from common.errors import ConfigError
from common.schema import Schema, kebab_case, unknown_name

if TYPE_CHECKING:
    from common.config import Settings

__all__ = ["PieceSettings", "Table", "all_piece_settings", "settings_of", "used_piece_settings"]

T = TypeVar("T")

_HERE = __name__.removesuffix("common.plugins")  # empty, or the package that holds all of ours

TABLES = (
    f"{_HERE}common.objectives:OBJECTIVES",
    f"{_HERE}server_app.methods:METHODS",
    f"{_HERE}server_app.selection.in_clusters:IN_CLUSTERS",
    f"{_HERE}server_app.aggregation.rules:AGGREGATIONS",
    f"{_HERE}server_app.aggregation.server_optimizers:SERVER_OPTIMIZERS",
)
"""Tables whose pieces may have settings of their own; by name, as they lie above this file."""

_NAME = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")


class PieceSettings(Schema):
    """Settings that a piece declares itself, beside it in its file.

    They are settings of every run, under keys like all others: ``fedcor_warmup`` is typed
    ``fedcor-warmup``. The piece names the class in its attribute ``settings`` and reads the values
    by ``settings.of(FedCorSettings).fedcor_warmup``.
    """

    paths: ClassVar[frozenset[str]] = frozenset()
    """Names of those that hold a path; one that is given is made absolute."""

    def check(self, settings: "Settings") -> None:
        """Raise ValueError with one line where these values do not go with a run's others."""

    def refuse_unused(self, settings: "Settings", table: "Table[Any]") -> bool:
        """Return whether the run's piece of a table uses these settings.

        Raises:
            ValueError: it does not, and a value was given.
        """
        users = [name for name, piece in table.items() if type(self) in settings_of(piece)]
        used = getattr(settings, table.attribute)
        if used in users:
            return True
        for name, field in type(self).model_fields.items():
            if getattr(self, name) != field.default:
                raise ValueError(
                    f"{kebab_case(name)} = {getattr(self, name)}: {table.kind} = {used} does not "
                    f"use it; leave it out, or set {table.kind}={' or '.join(users)}"
                )
        return False

    def discloses(self, settings: "Settings") -> frozenset[str]:
        """Return what of ``messages.DISCLOSURES`` a run of the piece needs of every site."""
        return frozenset()


class Table(Mapping[str, T], Generic[T]):
    """Pieces by name: the built-in ones in their order, then all others, sorted.

    An entry point is loaded when its piece is asked for. One that does not load, or bears a name
    that is taken, is a :class:`ConfigError` that names its package.

    Args:
        kind: the setting that names a piece, for error texts.
        group: of the entry points.
        pieces: the built-in ones.
        of: the type that every piece must have, or an abstract one, as ``Callable``.
    """

    def __init__(self, kind: str, group: str, pieces: Mapping[str, T], *, of: Any = object) -> None:
        self.kind = kind
        self.group = group
        self._of = of
        self._built_in = dict(pieces)
        self._added: dict[str, T] = {}

    @property
    def attribute(self) -> str:
        """The name of the setting among the attributes of ``Settings``."""
        return self.kind.replace("-", "_")

    def __getitem__(self, name: str) -> T:
        if name in self._built_in:
            return self._built_in[name]
        if name not in self._added and name in self._entries:
            self._added[name] = self._loaded(self._entries[name])
        return self._added[name]

    def __iter__(self) -> Iterator[str]:
        yield from self._built_in
        yield from sorted(self._added.keys() | self._entries.keys())

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __contains__(self, name: object) -> bool:
        return name in self._built_in or name in self._added or name in self._entries

    def named(self, name: str) -> T:
        """Return a run's piece; a :class:`ConfigError` if there is none of that name."""
        if name not in self:
            raise ConfigError(unknown_name(self.kind, name, self))
        return self[name]

    def add(self, name: str, piece: T) -> None:
        """Take in a piece from elsewhere, for this process and those forked from it."""
        where = f"{self.kind} {name!r}"
        if name in self:
            raise ConfigError(f"{where}: there is one of that name; choose another name")
        _check_name(where, name)
        self._check_piece(where, piece)
        self._added[name] = piece

    def remove(self, name: str) -> None:
        """Take out a piece that :meth:`add` took in."""
        del self._added[name]

    @cached_property
    def _entries(self) -> Mapping[str, EntryPoint]:
        """The entry points of the group, by name."""
        found: dict[str, EntryPoint] = {}
        for entry in entry_points(group=self.group):
            where, name = _whose(entry), entry.name
            _check_name(where, name)
            if name in self._built_in or name in self._added:
                raise ConfigError(f"{where}: there is a {self.kind} of that name; rename it")
            if name in found:
                raise ConfigError(f"{where}: {_whose(found[name])} has that name; remove one")
            found[name] = entry
        return found

    def _loaded(self, entry: EntryPoint) -> T:
        try:
            piece: T = entry.load()
        except Exception as error:  # whatever a foreign module does while it is imported
            reason = f"{type(error).__name__}: {error}".splitlines()[0]
            raise ConfigError(f"{_whose(entry)} cannot be loaded: {reason}") from error
        self._check_piece(_whose(entry), piece)
        return piece

    def _check_piece(self, where: str, piece: object) -> None:
        if not isinstance(piece, self._of):
            raise ConfigError(
                f"{where}: {piece!r} is a {type(piece).__name__}; it must be a {self._of.__name__}"
            )


def _whose(entry: EntryPoint) -> str:
    package = entry.dist.name if entry.dist else "a package"
    return f"{package}: entry point {entry.name!r} of {entry.group} ({entry.value})"


def _check_name(where: str, name: str) -> None:
    if not _NAME.fullmatch(name):
        raise ConfigError(f"{where}: a name is made of a-z, 0-9 and single dashes, like my-piece")


def settings_of(piece: object) -> tuple[type[PieceSettings], ...]:
    """Return the settings that a piece declares in its attribute ``settings``; most have none."""
    declared: tuple[type[PieceSettings], ...] = getattr(piece, "settings", ())
    return declared


def all_piece_settings() -> tuple[type[PieceSettings], ...]:
    """Return what the pieces of all :data:`TABLES` declare, in their order, each once."""
    pieces = (piece for table in TABLES for piece in resolve_name(table).values())
    return tuple(dict.fromkeys(schema for piece in pieces for schema in settings_of(piece)))


def used_piece_settings(settings: "Settings") -> tuple[type[PieceSettings], ...]:
    """Return what the pieces declare that a run's settings name."""
    tables = (resolve_name(table) for table in TABLES)
    used = (table.get(getattr(settings, table.attribute)) for table in tables)
    return tuple(dict.fromkeys(schema for piece in used for schema in settings_of(piece)))
