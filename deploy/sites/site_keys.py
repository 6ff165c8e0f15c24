"""Keys of a site: made on the site, of which only the public halves are ever sent.

Two keys. The SuperNode key (EC P-384) enrols the site with the server. The identity (Ed25519) is
what other sites know the site by, so that the server cannot speak for it.
"""

import hashlib
import re
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import tomli_w
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from client_app.peers import identity_of
from client_app.site_state import FolderKeeper
from common.errors import ConfigError
from common.identity import KEY_BYTES, fingerprint
from common.text_files import read_text
from deploy.sites.secret_files import private_folder, write_public, write_secret

SUPERNODE_KEY = "supernode"
STATE = "state"
SITE_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


@dataclass(frozen=True)
class PublicKeys:
    """What a site sends to whoever provisions: nothing in it is secret.

    Attributes:
        site: stable id.
        supernode_key: OpenSSH line of the EC P-384 key.
        identity_key: Ed25519 key, 64 hexadecimal digits.

    Raises:
        ConfigError: an id or a key of another form.
    """

    site: str
    supernode_key: str
    identity_key: str

    def __post_init__(self) -> None:
        if not SITE_ID.fullmatch(self.site):
            raise ConfigError(
                f"site = {self.site!r}: must be 1 to 64 letters, digits, dots, - or _"
            )
        if not is_p384(self.supernode_key):
            raise ConfigError(
                f"site {self.site}: supernode-key is no OpenSSH line of an EC P-384 key; "
                "coterie site init makes one"
            )
        if not re.fullmatch(rf"[0-9a-f]{{{2 * KEY_BYTES}}}", self.identity_key):
            raise ConfigError(
                f"site {self.site}: identity-key must be {2 * KEY_BYTES} hexadecimal digits"
            )

    @classmethod
    def read(cls, path: Path) -> Self:
        """Return the keys in a file that ``coterie site init`` wrote."""
        values = _public_toml(path)
        expected = {"site", "supernode-key", "identity-key"}
        if values.keys() != expected or not all(isinstance(v, str) for v in values.values()):
            raise ConfigError(f"{path}: must hold the texts {', '.join(sorted(expected))}")
        return cls(values["site"], values["supernode-key"], values["identity-key"])

    def write(self, path: Path) -> None:
        """Write the file that the site sends."""
        values = {
            "site": self.site,
            "supernode-key": self.supernode_key,
            "identity-key": self.identity_key,
        }
        write_public(path, tomli_w.dumps(values).encode())

    @property
    def supernode_fingerprint(self) -> str:
        """SHA-256 of the SuperNode key, 64 hexadecimal digits, as the server's log names it."""
        return supernode_fingerprint(self.supernode_key)

    @property
    def identity_fingerprint(self) -> str:
        """SHA-256 of the identity key, as other sites pin it."""
        return fingerprint(bytes.fromhex(self.identity_key))


def supernode_fingerprint(line: str) -> str:
    """Return the SHA-256 of an OpenSSH line's key (its SubjectPublicKeyInfo), in hexadecimal."""
    key = serialization.load_ssh_public_key(line.encode())
    der = key.public_bytes(
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    return hashlib.sha256(der).hexdigest()


def is_p384(line: str) -> bool:
    """Return whether an OpenSSH line is an EC P-384 public key."""
    try:
        key = serialization.load_ssh_public_key(line.encode())
    except (ValueError, UnsupportedAlgorithm):
        return False
    return isinstance(key, ec.EllipticCurvePublicKey) and isinstance(key.curve, ec.SECP384R1)


def init(
    site: str, folder: Path, *, public_file: Path | None = None, rotate: bool = False
) -> PublicKeys:
    """Make a site's keys in its own folder and return their public halves.

    They are also written to ``public_file``, by default ``<site>.public.toml`` in the folder.

    What is there stays; ``rotate`` replaces the SuperNode key. The identity is never replaced here:
    other sites have pinned it, so a new one is a matter between people.
    """
    private_folder(folder)
    key = folder / SUPERNODE_KEY
    if rotate or not key.exists():
        write_secret(key, _new_supernode_key())
    public = PublicKeys(
        site=site,
        supernode_key=f"{supernode_public(key)} {site}",
        identity_key=identity_of(FolderKeeper.open(folder / STATE)).public.hex(),
    )
    public.write(public_file or folder / f"{site}.public.toml")
    return public


def supernode_public(path: Path) -> str:
    """Return the public half, an OpenSSH line without a comment, of the key in a file."""
    try:
        key = serialization.load_ssh_private_key(path.read_bytes(), password=None)
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from None
    except (ValueError, UnsupportedAlgorithm) as error:
        raise ConfigError(f"{path} is no OpenSSH private key: {error}") from None
    line = key.public_key().public_bytes(
        serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
    )
    return line.decode()


def _new_supernode_key() -> bytes:
    return ec.generate_private_key(ec.SECP384R1()).private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.OpenSSH,
        serialization.NoEncryption(),
    )


def _public_toml(path: Path) -> dict[str, Any]:
    try:
        text = read_text(path)
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not a TOML file: {error}") from None
    if "PRIVATE KEY" in text:
        raise ConfigError(
            f"{path} holds a private key, which nobody but the site may have: destroy this copy "
            "and let the site make new keys (coterie site init --rotate)"
        )
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path} is not a TOML file: {error}") from None
