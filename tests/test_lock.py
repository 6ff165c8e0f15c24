"""Lock file: every direct dependency is pinned within its bounds, and every pin has a hash."""

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parent.parent
LOCK = (ROOT / "requirements.lock").read_text(encoding="utf-8")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
REMEDY = "run the command at the head of requirements.lock"


def pins():
    """The lines of the lock by the name that each pins: the version, then its hashes."""
    found = {}
    for block in re.split(r"^(?=[a-z0-9])", LOCK, flags=re.MULTILINE)[1:]:
        name, version = re.match(r"([\w.-]+)==(\S+)", block).groups()
        assert canonicalize_name(name) not in found
        found[canonicalize_name(name)] = (version, re.findall(r"--hash=(\S+)", block))
    return found


@pytest.mark.parametrize("line", PROJECT["dependencies"])
def test_every_direct_dependency_is_pinned_within_its_bounds(line):
    wanted = Requirement(line)
    version, _ = pins().get(canonicalize_name(wanted.name), (None, ()))
    assert version is not None, f"{wanted.name} is not locked: {REMEDY}"
    assert wanted.specifier.contains(version), f"{wanted.name} {version}: {REMEDY}"


def test_every_pin_has_a_hash():
    digest = re.compile(r"sha256:[0-9a-f]{64}")
    assert all(hashes and all(map(digest.fullmatch, hashes)) for _, hashes in pins().values())


def test_lock_names_the_command_that_makes_it_and_no_machine():
    assert "\n#    uv pip compile --generate-hashes " in LOCK
    assert "--python-version 3.11 " in LOCK
    text = re.sub(r"sha256:\w+", "", LOCK)
    assert not re.search(r"https?:|file:|--(extra-)?index|find-links|(^|\s)/", text)
