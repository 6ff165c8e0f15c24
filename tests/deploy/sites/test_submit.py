"""What Flower ships to the sites when a run is submitted."""

import io
import shutil
import zipfile

import pytest
from flwr.cli.build import build_fab_from_disk
from plan import PACKAGES, ROOT
from pydantic import Field

import hatch_build
from common.config import Settings
from common.errors import ConfigError
from common.plugins import PieceSettings
from deploy.sites import submit
from server_app.methods import METHODS, Composition
from server_app.methods.baselines import fedavg

# Flower asks pathspec for a pattern by an old name.
pytestmark = pytest.mark.filterwarnings("ignore:GitWildMatchPattern:DeprecationWarning")

SHIPPED = ("flower_app/client.py", "flower_app/server.py", "pyproject.toml")
SECRET = "-".join(("canary", "7f3a"))  # this file does not hold it
PRIVATE = ("privacy.json", "rounds.jsonl", "site.toml", "data.csv", "site.pem", "site", "notes.md")


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    """A copy of what lies in the checkout, and of what may lie there, too."""
    copy = tmp_path_factory.mktemp("checkouts") / "coterie"
    for folder in (*PACKAGES, "coterie", "flower_app", "docs", "tests", "benchmarks"):
        shutil.copytree(ROOT / folder, copy / folder)
    for file in ("pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", ".gitignore"):
        shutil.copy(ROOT / file, copy)
    for folder in ("", "runs/x", "x", "common", "common/data", "coterie", "flower_app"):
        (copy / folder).mkdir(parents=True, exist_ok=True)
        for name in PRIVATE:
            (copy / folder / name).write_text(f'secret = "{SECRET}"\n')
    (copy / "x" / "settings.py").write_text(f'KEY = "{SECRET}"\n')
    return copy


@pytest.fixture(scope="module")
def fab(checkout):
    return zipfile.ZipFile(io.BytesIO(build_fab_from_disk(checkout)))


def test_flower_ships_what_loads_the_installed_coterie_and_nothing_else(fab):
    assert set(fab.namelist()) == {*SHIPPED, ".info/CONTENT"}
    assert tuple(sorted(SHIPPED)) == tuple(sorted(hatch_build.SHIPPED))


def test_nothing_that_lies_in_a_checkout_is_shipped_with_it(checkout, fab):
    assert (
        len([path for path in checkout.rglob("*") if SECRET in _text(path)]) == 7 * len(PRIVATE) + 1
    )
    assert [name for name in fab.namelist() if SECRET.encode() in fab.read(name)] == []


def _text(path):
    return path.read_text("utf-8", errors="replace") if path.is_file() else ""


@pytest.mark.checkout
def test_the_app_that_is_sent_is_the_checkout():
    assert submit.APP == ROOT


class HurrySettings(PieceSettings):
    hurry: int = Field(3, ge=1, description="made up")


def test_only_settings_that_the_app_declares_are_sent(added):
    added(METHODS, "hurried", Composition(fedavg, settings=(HurrySettings,)))
    settings = Settings(strategy="hurried")
    assert submit._run_config(settings).keys() == settings.to_dict().keys() - {"hurry"}
    with pytest.raises(ConfigError, match=r"^hurry = 4: Flower takes only settings that stand"):
        submit._run_config(Settings(strategy="hurried", hurry=4))
