"""Bundles: small and constant, shown as they would be unpacked, and run where a file lets them."""

import io
import stat
import tomllib
import zipfile

import pytest
from commands import coterie
from flwr.cli.install import install_from_fab

from common.errors import ConfigError
from deploy.sites.bundles import (
    ANY,
    INSTALLED,
    Approved,
    Bundle,
    digest_of,
    escaped,
    installed,
    own_digest,
)
from deploy.sites.site import SiteFile

OTHER = digest_of(b"another app")
SITE = """# what north says
site = "north"
dataset = "beds"
data-path = "beds.csv"
state-dir = "state"
superlink = "localhost:8000"
root-certificates = "ca.crt"  # the authority
"""


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


# What a bundle is ------------------------------------------------------------------------------


def test_coteries_own_bundle_holds_no_code_of_coterie(own):
    assert sorted(own.files) == ["flower_app/client.py", "flower_app/server.py", "pyproject.toml"]
    assert len(own.content) < 10_000
    for side in ("client", "server"):
        lines = own.files[f"flower_app/{side}.py"].decode().splitlines()
        assert lines[2:] == ["from coterie import flower", "", f"app = flower.{side}_app"]
    assert own.app == "coterie/coterie"
    assert own.digest == installed().digest == own_digest()


def test_what_is_shown_is_what_flower_unpacks(own, tmp_path):
    path = install_from_fab(own.content, tmp_path, skip_prompt=True)
    unpacked = {
        file.relative_to(path).as_posix(): file.read_bytes()
        for file in path.rglob("*")
        if file.is_file()
    }
    assert unpacked == own.files
    assert path.name.endswith(f".{own.version}.{own.digest[:8]}")


@pytest.mark.filterwarnings("ignore:Duplicate name:UserWarning")  # that is what is tried
@pytest.mark.parametrize(
    ("added", "why"),
    [
        ([("flower_app/client.py", b"shown is the first, unpacked is the last")], "one name"),
        ([("../outside.py", b"")], "outside of its folder"),
        ([("/etc/outside.py", b"")], "outside of its folder"),
        ([("common/./errors.py", b"")], "outside of its folder"),
        ([("common/\x1b[2Kerrors.py", b"")], "outside of its folder"),
        ([("large.py", bytes(101 * 2**20))], "more than 104,857,600 bytes"),
        ([("common/errors.py  9 bytes", b"")], "outside of its folder"),
        ([("common/err\u3164ors.py", b"")], "outside of its folder"),
        ([("x" * 161, b"")], "outside of its folder"),
        ([("a.py", b"# coding: unicode_escape\n# \\u000aevil()\n")], "in unicode_escape: Python"),
        ([("a.py", b"#\n# -*- coding: utf-7 -*-\n")], "a.py is written in utf-7"),
        ([("a.py", b"x = '\xff'\n")], "a.py is written in none that Python reads"),
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
    link = zipfile.ZipInfo("flower_app/link.py")
    link.external_attr = (stat.S_IFLNK | 0o777) << 16
    content = remade(own, [(link, b"/etc/passwd")])
    assert Bundle.read(content, "x").files["flower_app/link.py"] == b"/etc/passwd"
    path = install_from_fab(content, tmp_path, skip_prompt=True)
    assert not (path / "flower_app" / "link.py").is_symlink()


@pytest.mark.parametrize(
    "hidden",
    [
        *("\x1b[2K\x1b[1A", "\u202e", "\u2066", "\u200b", "\r", "\x08", "\x7f", "\u2028", "\x9b"),
        *("\u00a0", "\u3000", "\u00ad", "\ufeff", "\u0085", "\U000e0041", "\ue000"),
        *("\u034f", "\u115f", "\u3164", "\uffa0", "\u2800", "\ufe0f", "\U000e0100"),  # by a list
    ],
)
def test_what_a_reader_would_not_see_is_escaped_and_counted(own, hidden):
    evil = f"import os  # {hidden}harmless\n"
    bundle = Bundle.read(remade(own, **{"flower_app/client.py": evil.encode()}), "x")
    escape = hidden.encode("unicode_escape").decode()
    assert f"flower_app/client.py: import os  # {escape}harmless" in bundle.text()
    assert all(line.isprintable() for line in bundle.text() if "client.py" in line)
    assert hidden not in "".join(bundle.text())
    marks = 2 if len(hidden) > 1 else 1
    [line] = [line for line in bundle.listing() if "client.py" in line]
    assert line.endswith(f"bytes; {marks} characters that a reader does not see")
    assert not any("does not see" in line for line in own.listing())


def test_letters_of_other_languages_are_no_escapes():
    assert escaped("größe = 1  # 名前 ñ é") == "größe = 1  # 名前 ñ é"


@pytest.mark.parametrize("word", ["\u0440ath", "\U0001d428s", "\uff4fs", "\u03bfs"])
def test_letters_that_look_like_others_are_counted(own, word):
    """A Cyrillic p, a mathematical and a wide o, which Python takes for an o, a Greek omicron."""
    code = f"import {word}\ngröße = 1\n".encode()
    [line] = [
        line
        for line in Bundle.read(remade(own, **{"flower_app/client.py": code}), "x").listing()
        if "client.py" in line
    ]
    assert line.endswith("bytes; 1 letters of other scripts, some of which look like Latin ones")


def test_nothing_of_a_long_line_is_out_of_sight(own):
    code = b"x = 1" + b" " * 5000 + b"; import os\n"
    bundle = Bundle.read(remade(own, **{"flower_app/client.py": code}), "x")
    lines = [line for line in bundle.text() if "client.py" in line]
    assert max(map(len, lines)) <= 160 + len("flower_app/client.py: ")
    assert any(line.endswith("; import os") for line in lines)
    assert any(line.endswith("1 lines of more than 160 characters") for line in bundle.listing())


def test_what_is_no_text_is_said_to_be_none(own):
    [line] = [
        line
        for line in Bundle.read(remade(own, [("fast.so", b"\x7fELF\xff\xfe")]), "x").listing()
        if "fast.so" in line
    ]
    assert line == "fast.so  6 bytes; no text: nobody can read what it does"


def test_a_name_makes_no_line_of_its_own_and_looks_like_no_other(own):
    project = own.files["pyproject.toml"].decode()
    theirs = project.replace('name = "coterie"', r'name = "c\u043eterie 1.0\nbundle: coterie"', 1)
    assert theirs != project
    words = Bundle.read(remade(own, **{"pyproject.toml": theirs.encode()}), "x").words
    assert words.isascii()
    assert "\n" not in words


# Which may run ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "covered"),
    [
        ("", []),
        (INSTALLED, ["own"]),
        (OTHER, ["other"]),
        (f" installed , {OTHER} ", ["own", "other"]),
        (ANY, ["own", "other"]),
    ],
)
def test_what_a_text_covers(own, text, covered):
    approved, digests = Approved.parse(text), {"own": own.digest, "other": OTHER}
    assert [name for name, digest in digests.items() if approved.covers(digest)] == covered


@pytest.mark.parametrize("text", ["all", OTHER[:12], OTHER.upper(), f"installed;{OTHER}"])
def test_what_is_no_approval_is_refused_before_the_site_starts(text, tmp_path):
    with pytest.raises(ConfigError, match="neither 'installed' nor the 64 digits"):
        Approved.parse(text)
    path = tmp_path / "site.toml"
    path.write_text(f'approved = "{text}"\n{SITE}')
    with pytest.raises(ConfigError, match="neither 'installed' nor the 64 digits"):
        SiteFile.read(path)


def test_a_site_that_says_nothing_runs_its_own_installation_alone(tmp_path):
    path = tmp_path / "site.toml"
    path.write_text(SITE)
    assert Approved.read(path) == Approved.parse(SiteFile.read(path).approved)
    assert str(Approved.read(path)) == "installed"


@pytest.mark.parametrize("before", ["", 'approved = "installed" # ours\n'])
def test_an_approval_changes_nothing_else_of_the_file(tmp_path, before):
    path = tmp_path / "site.toml"
    path.write_text(before + SITE)
    path.chmod(0o640)
    Approved.read(path).joined(OTHER).joined(OTHER).write(path)
    text = path.read_text()
    line, _, rest = text.partition("\n")
    assert line == f'approved = "installed,{OTHER}"' + (" # ours" if before else "")
    assert rest == SITE
    assert path.stat().st_mode & 0o777 == 0o640
    assert SiteFile.read(path).approved == f"installed,{OTHER}"


def test_a_file_that_writes_it_in_another_way_is_left_to_its_owner(tmp_path):
    path = tmp_path / "site.toml"
    path.write_text(f"approved = 'installed'\n{SITE}")
    with pytest.raises(ConfigError, match=f'write approved = "{OTHER}" into it yourself'):
        Approved.parse(OTHER).write(path)
    assert path.read_text() == f"approved = 'installed'\n{SITE}"


def test_an_owner_sees_what_is_in_a_bundle_and_is_asked(own, tmp_path, monkeypatch):
    path = tmp_path / "site.toml"
    path.write_text(SITE)
    words = ("approve", "theirs.fab", "--config", "site.toml")
    missing = coterie(*words, cwd=tmp_path)
    assert missing.returncode == 2
    assert "theirs.fab: No such file or directory; name the .fab file" in missing.stderr
    done = coterie("bundle", "--output", "theirs.fab", cwd=tmp_path)
    assert done.stdout == f"{own.words}\n"
    done = coterie(*words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "runs it already" in done.stdout

    theirs = remade(own, **{"flower_app/client.py": b"x = 1 # \x1b[2K\n"})
    (tmp_path / "theirs.fab").write_bytes(theirs)
    monkeypatch.setattr("sys.stdin", io.StringIO("n\n"))
    no = coterie(*words, cwd=tmp_path)
    assert no.returncode == 1
    assert "flower_app/client.py  13 bytes; 1 characters that a reader does not see" in no.stdout
    assert "Its code will run as this user, with the data of site north" in no.stdout
    assert path.read_text() == SITE
    yes = coterie(*words, "--yes", "--show", cwd=tmp_path)
    assert yes.returncode == 0
    assert "flower_app/client.py: x = 1 # \\x1b[2K\n" in yes.stdout
    # The digest stands beside the question, after all lines.
    assert f"sha256 {digest_of(theirs)}\n{path.name}: approved" in yes.stdout
    assert "\x1b" not in yes.stdout
    assert tomllib.loads(path.read_text())["approved"] == f"installed,{digest_of(theirs)}"
