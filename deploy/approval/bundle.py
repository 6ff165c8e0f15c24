"""Bundle: the program that a run sends to the sites, read without being unpacked.

Flower calls it a FAB: a zip file of the app's ``pyproject.toml`` and sources. The bytes of one
build are the same on every machine, so that people can compare their SHA-256.
"""

import difflib
import hashlib
import io
import warnings
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from common.errors import ConfigError

_ROOT = Path(__file__).parents[2]
APP = _ROOT if (_ROOT / "pyproject.toml").is_file() else _ROOT / "flower-app"
"""The Flower app: the checkout that this file lies in, or what an installed copy carries of it."""
SUFFIX = ".fab"
_PROJECT, _LISTED = "pyproject.toml", ".info/CONTENT"
_MOST_BYTES = 100 * 2**20  # of all files; Flower takes bundles of 10 MiB


@dataclass(frozen=True)
class Bundle:
    """A bundle that can be read.

    Attributes:
        content: the zip file.
        app: ``publisher/name`` as its ``pyproject.toml`` says.
        version: the same.
        files: content by path, the list that Flower adds left out.
    """

    content: bytes
    app: str
    version: str
    files: Mapping[str, bytes]

    @classmethod
    def read(cls, content: bytes, source: str) -> "Bundle":
        """Return a bundle; :class:`ConfigError` for what cannot be shown as it would be unpacked.

        Args:
            content: the zip file.
            source: what an error is to name.
        """
        from flwr.cli.config_utils import get_fab_metadata  # here, since it takes a second

        try:
            with zipfile.ZipFile(io.BytesIO(content)) as archive:
                members = archive.infolist()
                names = [member.filename for member in members]
                if len(set(names)) < len(names) or not all(map(_is_plain, names)):
                    raise ValueError("two files of one name, or one outside of its folder")
                if sum(member.file_size for member in members) > _MOST_BYTES:
                    raise ValueError(f"more than {_MOST_BYTES:,} bytes")
                files = {name: archive.read(name) for name in names if name != _LISTED}
            app, version = get_fab_metadata(content)
        except (ValueError, KeyError, zipfile.BadZipFile, OSError, RuntimeError) as error:
            raise ConfigError(
                f"{source}: is no bundle of a Flower app that could be approved: {error}"
            ) from None
        return cls(content, app, version, files)

    @property
    def digest(self) -> str:
        """SHA-256 of the zip file, 64 hexadecimal digits."""
        return digest_of(self.content)

    @property
    def words(self) -> str:
        """Name, version and digest, on a line."""
        return f"{self.app} {self.version}, {len(self.files)} files, sha256 {self.digest}"

    def changes(self, other: "Bundle") -> list[str]:
        """Return what is added, changed and removed from another bundle to this one, by file."""
        ours, theirs = self.files, other.files
        both = sorted(ours.keys() & theirs.keys())
        return [
            *(f"added    {path}" for path in sorted(ours.keys() - theirs.keys())),
            *(f"changed  {path}" for path in both if ours[path] != theirs[path]),
            *(f"removed  {path}" for path in sorted(theirs.keys() - ours.keys())),
        ]

    def difference(self, other: "Bundle") -> list[str]:
        """Return the lines of ``diff -u`` from another bundle to this one."""
        lines: list[str] = []
        for path in sorted(self.files.keys() | other.files.keys()):
            pair = [bundle.files.get(path, b"") for bundle in (other, self)]
            if pair[0] != pair[1]:
                before, after = (text.decode(errors="backslashreplace") for text in pair)
                lines += difflib.unified_diff(
                    before.splitlines(), after.splitlines(), f"a/{path}", f"b/{path}", lineterm=""
                )
        return lines


def installed() -> Bundle:
    """Return the bundle that this installation of Coterie sends as it is now."""
    from flwr.cli.build import build_fab_from_disk

    if not (APP / _PROJECT).is_file():
        raise ConfigError(
            f"{APP} holds no {_PROJECT}, which Flower needs to send the app: install Coterie anew"
        )
    with warnings.catch_warnings():  # Flower asks pathspec for a pattern by an old name
        warnings.simplefilter("ignore", DeprecationWarning)
        content = build_fab_from_disk(APP)
    return Bundle.read(content, str(APP))


def digest_of(content: bytes) -> str:
    """Return the SHA-256 of a bundle, by which Flower and a site's file name it."""
    return hashlib.sha256(content).hexdigest()


def _is_plain(name: str) -> bool:
    """Return whether a file's name is the path at which it comes to lie, on any system."""
    path = PurePosixPath(name)
    plain = not path.is_absolute() and ".." not in path.parts and str(path) == name
    return plain and name.isprintable() and not set(name) & set('\\:*?"<>|')
