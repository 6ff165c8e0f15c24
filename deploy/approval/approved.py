"""Approvals: which bundles a site's own file lets it run.

``approved`` in ``site.toml`` lists them: ``installed``, the bundle that the site's own installation
of Coterie would send; SHA-256 digests that ``coterie approve`` wrote; or ``any``.
"""

import functools
import re
import shutil
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from common.config import read_toml
from common.errors import ConfigError
from common.text_files import read_text
from deploy.approval.bundle import SUFFIX, Bundle, digest_of, installed

KEY = "approved"
ANY, INSTALLED = "any", "installed"
SUPERNODE = f"{__package__}.supernode"
"""Module that runs a site's SuperNode; only named here, since it takes seconds to import."""
REFUSED = "refused-bundles"
"""Folder of the site's ``state-dir`` with bundles that it did not run, never unpacked."""
_DIGEST = re.compile(r"[0-9a-f]{64}")
_LINE = re.compile(rf'^{KEY}[ \t]*=[ \t]*"[^"\n]*"', re.MULTILINE)
_MOST_REFUSED = 4  # that are kept, each of at most as many bytes as Flower lets one have
_MOST_BYTES = 10 * 2**20


@dataclass(frozen=True)
class Approved:
    """Names in a site's file, checked."""

    names: tuple[str, ...]

    def __post_init__(self) -> None:
        for name in self.names:
            if name not in (ANY, INSTALLED) and not _DIGEST.fullmatch(name):
                raise ConfigError(
                    f"{KEY}: {name!r} is neither {INSTALLED!r} nor the 64 digits of a bundle's "
                    f"SHA-256, which coterie approve writes, nor {ANY!r}"
                )

    @classmethod
    def parse(cls, text: str) -> "Approved":
        """Return the names in a text, separated by commas; nothing is approved by an empty one."""
        return cls(tuple(name.strip() for name in text.split(",") if name.strip()))

    @classmethod
    def read(cls, site_file: Path) -> "Approved":
        """Return what a site's file says now."""
        return cls.parse(str(read_toml(site_file).get(KEY, INSTALLED)))

    def __str__(self) -> str:
        return ",".join(self.names)

    def covers(self, digest: str, own: Callable[[], str]) -> bool:
        """Return whether a bundle may run here.

        Args:
            digest: the bundle's.
            own: makes the digest of the installation's, which takes a moment.
        """
        if self.all_may or digest in self.names:
            return True
        return INSTALLED in self.names and digest == own()

    @property
    def all_may(self) -> bool:
        """Whether the site runs whatever is sent."""
        return ANY in self.names

    def joined(self, digest: str) -> "Approved":
        """Return these and one more."""
        return self if digest in self.names else Approved((*self.names, digest))

    def write(self, site_file: Path) -> None:
        """Put these into a site's file; nothing else of it changes.

        Raises:
            ConfigError: the file cannot be written, or is not laid out so that this can be done.
        """
        text = read_text(site_file)
        before, line = tomllib.loads(text), f'{KEY} = "{self}"'
        changed = _LINE.sub(line, text, count=1) if KEY in before else f"{line}\n{text}"
        by_hand = f"write {line} into it yourself"
        if tomllib.loads(changed) != {**before, KEY: str(self)}:
            raise ConfigError(f"{site_file}: {KEY} is not on a line of its own: {by_hand}")
        try:
            target = site_file.resolve()
            temporary = target.with_name(f".{target.name}.part")
            temporary.write_text(changed, encoding="utf-8")
            shutil.copymode(target, temporary)
            temporary.replace(target)
        except OSError as error:
            raise ConfigError(f"{site_file}: {error.strerror}: {by_hand}") from None


def keep(content: bytes, state: Path) -> None:
    """Keep a refused bundle, so that its site's owner can look at it; the oldest make way."""
    if len(content) > _MOST_BYTES:
        return
    folder = state / REFUSED
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = folder / f"{digest_of(content)}{SUFFIX}"
    path.write_bytes(content)
    path.chmod(0o600)
    by_age = sorted(folder.glob(f"*{SUFFIX}"), key=lambda file: file.stat().st_mtime_ns)
    for old in by_age[:-_MOST_REFUSED]:
        old.unlink()


def found(named: str, state: Path) -> Bundle:
    """Return a bundle: a file's, the installation's, or one that a site refused, by first digits.

    Raises:
        ConfigError: there is none, or digits are of several.
    """
    if named == INSTALLED:
        return installed()
    path = Path(named)
    if path.suffix != SUFFIX and re.fullmatch(r"[0-9a-f]{8,64}", named):
        paths = sorted((state / REFUSED).glob(f"{named}*{SUFFIX}"))
        if len(paths) != 1:
            raise ConfigError(
                f"{named}: {len(paths)} of the bundles that this site refused begin so; name more "
                "digits, or the bundle's file"
            )
        [path] = paths
    try:
        return Bundle.read(path.read_bytes(), str(path))
    except OSError as error:
        raise ConfigError(
            f"{named}: {error.strerror}; name a {SUFFIX} file, or at least 8 of the digits by "
            "which the site refused a bundle"
        ) from None


@functools.lru_cache(maxsize=1)
def own_digest() -> str:
    """Return the digest of the installation's bundle, as it was when this was first asked."""
    return installed().digest
