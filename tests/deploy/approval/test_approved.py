"""Approvals: what a site's file lets run, how it comes to stand there, and who is shown what."""

import io
import tomllib

import pytest
from commands import coterie

from common.errors import ConfigError
from deploy.approval.approved import ANY, REFUSED, Approved, found, keep, own_digest
from deploy.approval.bundle import digest_of, installed
from deploy.sites.site import SiteFile

FIRST, SECOND = digest_of(b"first"), digest_of(b"second")
SITE = """# what north says
site = "north"
dataset = "beds"
data-path = "beds.csv"
state-dir = "state"
superlink = "localhost:8000"
root-certificates = "ca.crt"  # the authority
"""


def forbidden():
    raise AssertionError("nobody asked for the installation's own")


@pytest.mark.parametrize(
    ("text", "covered"),
    [
        ("", []),
        ("installed", [FIRST]),
        (SECOND, [SECOND]),
        (f" installed , {SECOND} ", [FIRST, SECOND]),
        (ANY, [FIRST, SECOND]),
    ],
)
def test_what_a_text_covers(text, covered):
    approved = Approved.parse(text)
    assert [one for one in (FIRST, SECOND) if approved.covers(one, lambda: FIRST)] == covered


def test_the_installations_own_is_not_made_where_it_is_not_asked_for():
    assert Approved.parse(f"{SECOND},installed").covers(SECOND, forbidden)
    assert not Approved.parse(SECOND).covers(FIRST, forbidden)


@pytest.mark.parametrize("text", ["all", FIRST[:12], FIRST.upper(), f"installed;{FIRST}"])
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
    assert own_digest() == installed().digest


@pytest.mark.parametrize("before", ["", 'approved = "installed" # ours\n'])
def test_an_approval_changes_nothing_else_of_the_file(tmp_path, before):
    path = tmp_path / "site.toml"
    path.write_text(before + SITE)
    path.chmod(0o640)
    Approved.read(path).joined(FIRST).joined(FIRST).write(path)
    text = path.read_text()
    line, _, rest = text.partition("\n")
    assert line == f'approved = "installed,{FIRST}"' + (" # ours" if before else "")
    assert rest == SITE
    assert path.stat().st_mode & 0o777 == 0o640
    assert SiteFile.read(path).approved == f"installed,{FIRST}"


def test_a_file_that_writes_it_in_another_way_is_left_to_its_owner(tmp_path):
    path = tmp_path / "site.toml"
    path.write_text(f"approved = 'installed'\n{SITE}")
    with pytest.raises(ConfigError, match=f'write approved = "{FIRST}" into it yourself'):
        Approved.parse(FIRST).write(path)
    assert path.read_text() == f"approved = 'installed'\n{SITE}"


def test_refused_bundles_are_kept_for_the_owner_and_the_oldest_make_way(tmp_path):
    for number in range(6):
        keep(b"bundle %d" % number, tmp_path)
    folder = tmp_path / REFUSED
    kept = {file.read_bytes() for file in folder.iterdir()}
    assert kept == {b"bundle %d" % number for number in range(2, 6)}
    assert {file.stat().st_mode & 0o777 for file in folder.iterdir()} == {0o600}
    keep(bytes(11 * 2**20), tmp_path)
    assert len(list(folder.iterdir())) == 4


def test_a_refused_bundle_is_found_by_its_first_digits(tmp_path):
    own = installed()
    keep(own.content, tmp_path)
    keep(b"no zip file", tmp_path)
    assert found(own.digest[:8], tmp_path) == own
    for named, why in (
        (digest_of(b"no zip file")[:8], "is no bundle of a Flower app"),
        (own.digest[:7], "No such file or directory; name a .fab file"),
        ("0123456789", "0 of the bundles that this site refused begin so"),
        ("none.fab", "No such file or directory"),
    ):
        with pytest.raises(ConfigError, match=why):
            found(named, tmp_path)


def test_an_owner_sees_what_differs_and_is_asked(tmp_path, monkeypatch):
    path = tmp_path / "site.toml"
    path.write_text(SITE)
    words = ("approve", "own.fab", "--config", "site.toml")
    done = coterie("bundle", "--output", "own.fab", cwd=tmp_path)
    assert done.stdout == f"{installed().words}\n"
    done = coterie(*words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "files that differ: 0" in done.stdout
    assert "runs it already" in done.stdout
    path.write_text(f'approved = ""\n{SITE}')
    monkeypatch.setattr("sys.stdin", io.StringIO("n\n"))
    no = coterie(*words, cwd=tmp_path)
    assert no.returncode == 1
    assert "Its code will run as this user, with the data of site north" in no.stdout
    assert tomllib.loads(path.read_text())["approved"] == ""
    assert coterie(*words, "--yes", cwd=tmp_path).returncode == 0
    assert tomllib.loads(path.read_text())["approved"] == installed().digest
