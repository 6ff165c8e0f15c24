"""Model card: what the record says of the models, without a place or a time."""

import re
from dataclasses import replace

import numpy as np
import pytest
from made_folders import new_folder, whole_run, write_sites

from common.data.preprocessing import Preprocessing
from server_app.record.format import ResultsFile
from server_app.record.recorded_run import RecordedRun
from server_app.record.release_format import CentralDpFile
from server_app.record.run_folder import PREPROCESSING
from server_app.report.model_card import CARD, write_model_card

MADE = Preprocessing(
    scaling="common",
    input_shape=(2,),
    classes=("no", "yes"),
    columns=("age", "pulse"),
    mean=(1.0, 2.0),
    scale=(1.0, 0.5),
)


def card(folder):
    write_model_card(folder, RecordedRun.read(folder.path))
    return (folder.path / CARD).read_text()


def with_model(folder, name="model-0"):
    folder.write_model(name, {"w": np.zeros(2)})
    folder.write(PREPROCESSING, MADE.to_json())
    return folder


def test_the_card_has_the_records_figures_settings_and_releases(tmp_path):
    text = card(with_model(whole_run(tmp_path)))
    assert "| Accuracy at the end | 81.2 % |" in text
    assert "Columns: `age`, `pulse`." in text
    assert "Classes: `no`, `yes`." in text
    assert 'split = "by-user"' in text
    assert str(tmp_path) not in text
    assert card(with_model(whole_run(tmp_path / "again"))) == text


def test_each_clusters_model_names_its_sites(tmp_path):
    folder = with_model(with_model(whole_run(tmp_path), "cluster-0"), "cluster-1")
    (folder.path / "models" / "model-0.safetensors").unlink(missing_ok=True)
    clusters = RecordedRun.read(folder.path).cluster_of
    row = next(line for line in card(folder).splitlines() if "`cluster-1.safetensors`" in line)
    named = [site for site, cluster in clusters.items() if cluster == 1]
    assert all(f"`{site}`" in row for site in named)
    assert sum(f"`{site}`" in row for site in clusters) == len(named)


def test_it_says_what_is_not_here_and_what_is_promised(tmp_path):
    folder = with_model(new_folder(tmp_path, objective="ditto"))
    write_sites(folder, ["a", "b"])
    text = card(folder)
    assert "Every site also has a model of its own" in text
    assert "these carry no promise" in text
    folder.store(
        CentralDpFile(mechanism="Gaussian", releases=3, epsilon=4.0, delta=1e-5, unit="one site")
    )
    folder.store(replace(ResultsFile(), metrics={"macro-f1": 0.25}))
    text = card(folder)
    assert "epsilon 4 at delta 1e-05, for one site" in text
    assert "| macro-f1 | 0.2500 |" in text


@pytest.mark.parametrize(
    "name", ["a`b", "a|b", "x\n# Heading", "![](http://x)", "a```b", "\x1b[2J", "\u202eb"]
)
def test_names_of_strangers_make_no_markdown(tmp_path, name):
    """Each stands in a span of code that it cannot end, on one line, with nothing that hides."""
    folder = with_model(whole_run(tmp_path))
    folder.write(PREPROCESSING, MADE.model_copy(update={"columns": ("age", name)}).to_json())
    [line] = [line for line in card(folder).splitlines() if line.startswith("Columns: ")]
    rest = line.removeprefix("Columns: `age`, ").removesuffix(".")
    fence = re.match("`+", rest).group()
    inner = rest[len(fence) : -len(fence)]
    assert rest.endswith(fence)
    assert fence not in re.findall("`+", inner)
    assert inner.isprintable()
    assert not re.search(r"(?<!\\)\|", inner)


def test_before_there_are_models_there_is_no_card(tmp_path):
    folder = new_folder(tmp_path)
    write_model_card(folder, RecordedRun.read(folder.path))
    assert not (folder.path / CARD).exists()
