"""Bundles: what is shown of one is what Flower would unpack, or it cannot be approved."""

import io
import stat
import zipfile

import pytest
from flwr.cli.install import install_from_fab

from common.errors import ConfigError
from deploy.approval.bundle import Bundle, digest_of, installed


@pytest.fixture(scope="module")
def own():
    return installed()


def remade(bundle, added=(), **changed):
    """The same bundle with other files, as Flower would take it."""
    files = {name: data for name, data in bundle.files.items() if name not in changed}
    files |= {name: data for name, data in changed.items() if data is not None}
    listed = [f"{name},{digest_of(data)},{8 * len(data)}" for name, data in files.items()]
    memory = io.BytesIO()
    with zipfile.ZipFile(memory, "w") as archive:
        for name, data in [*files.items(), (".info/CONTENT", "\n".join(listed)), *added]:
            archive.writestr(name, data)
    return memory.getvalue()


def test_what_is_shown_is_what_flower_unpacks(own, tmp_path):
    path = install_from_fab(own.content, tmp_path, skip_prompt=True)
    unpacked = {
        file.relative_to(path).as_posix(): file.read_bytes()
        for file in path.rglob("*")
        if file.is_file()
    }
    assert unpacked == own.files
    assert path.name.endswith(f".{own.version}.{own.digest[:8]}")
    assert own.app == "coterie/coterie"


def test_a_difference_is_named_by_file_and_line(own):
    text = own.files["common/seeds.py"]
    changes = {"common/seeds.py": text + b"import this\n", "common/new.py": b"x = 1\n"}
    other = Bundle.read(remade(own, **changes, **{"common/errors.py": None}), "other.fab")
    assert other.digest != own.digest
    assert other.changes(own) == [
        "added    common/new.py",
        "changed  common/seeds.py",
        "removed  common/errors.py",
    ]
    lines = other.difference(own)
    assert "+import this" in lines
    assert "+x = 1" in lines
    assert own.changes(own) == own.difference(own) == []


@pytest.mark.filterwarnings("ignore:Duplicate name:UserWarning")  # that is what is tried
@pytest.mark.parametrize(
    ("added", "why"),
    [
        ([("common/errors.py", b"shown is the first, unpacked is the last")], "one name"),
        ([("../outside.py", b"")], "outside of its folder"),
        ([("/etc/outside.py", b"")], "outside of its folder"),
        ([("common/./errors.py", b"")], "outside of its folder"),
        ([("common/\x1b[2Kerrors.py", b"")], "outside of its folder"),
        ([("large.py", bytes(101 * 2**20))], "more than 104,857,600 bytes"),
    ],
)
def test_what_would_be_unpacked_otherwise_than_it_is_shown_is_no_bundle(own, added, why):
    with pytest.raises(ConfigError, match=f"^x: is no bundle .* could be approved: .*{why}"):
        Bundle.read(remade(own, added), "x")


@pytest.mark.parametrize("content", [b"", b"PK", b"no zip file", bytes(5000)])
def test_what_is_no_zip_file_is_no_bundle(content):
    with pytest.raises(ConfigError, match=r"^x: is no bundle"):
        Bundle.read(content, "x")


def test_a_link_is_unpacked_as_a_file_and_shown_as_one(own, tmp_path):
    link = zipfile.ZipInfo("common/link.py")
    link.external_attr = (stat.S_IFLNK | 0o777) << 16
    content = remade(own, [(link, b"/etc/passwd")])
    assert Bundle.read(content, "x").files["common/link.py"] == b"/etc/passwd"
    path = install_from_fab(content, tmp_path, skip_prompt=True)
    assert not (path / "common" / "link.py").is_symlink()
