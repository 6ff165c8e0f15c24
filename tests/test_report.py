"""The report of runs in every state: sound, self-contained, and with the run's own numbers."""

import base64
import io
import re
from collections import Counter
from html.parser import HTMLParser
from xml.etree import ElementTree

import numpy as np
import pytest
from PIL import Image

from common.config import Settings
from server_app.record.run_folder import RunFolder
from server_app.report.report import write_report

VOID = {"meta", "link", "br", "img", "hr", "input"}


class Reader(HTMLParser):
    """Collects a page's text, attributes and tables; fails on tags that do not match."""

    def __init__(self, page):
        super().__init__()
        self.open, self.texts, self.attributes, self.tags = [], [], [], Counter()
        self.rows = []
        self.feed(page)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags[tag] += 1
        self.attributes += attrs
        if tag == "tr":
            self.rows.append([])
        if tag in {"td", "th"}:
            self.rows[-1].append("")
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags[tag] += 1
        self.attributes += attrs

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if {"td", "th"} & set(self.open):
            self.rows[-1][-1] += data
        if data.strip() and not {"style", "svg"} & set(self.open):
            self.texts.append(data.strip())

    @property
    def text(self):
        return "\n".join(self.texts)

    def fact(self, label):
        return self.texts[self.texts.index(label) + 1]

    def row(self, first):
        return next(row for row in self.rows if row[:1] == [first])


def new_folder(tmp_path, **settings):
    values = {"output-dir": str(tmp_path), "num-clients": 0, "split": "by-user"}
    return RunFolder.create(Settings.parse(values | settings))


def site_names(n):
    return [f"site-{i:02d}" for i in range(n)]


def write_sites(folder, names):
    folder.write_json(
        "sites.json",
        [
            {"site": site, "num_examples": 70, "num_test_examples": 18, "num_classes": 4}
            | {"releases": ["label-histogram", "model"]}
            for site in names
        ],
    )


def write_groups(folder, names, k, rng, kind="label-histogram"):
    labels = np.arange(len(names)) % k
    shares = rng.dirichlet(np.ones(4), len(names))
    distances = np.abs(shares[:, None] - shares[None]).sum(-1)
    scores = {str(number): 0.5 - 0.1 * abs(number - k) for number in range(2, 5)}
    folder.write_json(
        "clusters.json",
        {"round": 0, "strategy": "similarity", "metric": "euclidean", "num_clusters": k}
        | {"chosen_by": "silhouette", "scores": scores}
        | {"sites": dict(zip(names, labels.tolist(), strict=True))},
    )
    arrays = {"sites": np.array(names), "descriptors": shares, "distances": distances}
    folder.write_arrays("dissimilarity.npz", arrays | {"labels": labels, "kind": np.array(kind)})


def round_line(number, names, accuracy, models=1, **more):
    scores = [
        {"model": m, "accuracy": accuracy - 0.01 * m, "loss": 1.5, "num_sites": 2}
        for m in range(models)
    ]
    return {
        "round": number, "attempt": 1, "accuracy": accuracy, "loss": 1 - accuracy,
        "train_loss": 0.125, "models": scores, "trained": names[number % len(names) :][:2],
        "rejected": [], "missing": [], "bytes_down": 2_000_000, "bytes_up": 500_000,
        "seconds": {"train": 1.5, "evaluate": 0.25, "server": 0.25},
        "joules": {"pre": 10.0, "train": 400.0, "comm": 2.0, "evaluate": 90.0},
        "joules_source": {"pre": "attributed", "train": "attributed", "comm": "estimated"},
        "joules_server": {"pre": 8.0, "train": 5.0, "evaluate": 1.0}, "radio_seconds": 12.0,
    } | more  # fmt: skip


def write_rounds(folder, names, count, rng, models=1):
    accuracies = np.round(np.linspace(0.3, 0.8, count), 4).tolist()
    for number, accuracy in enumerate(accuracies, start=1):
        folder.append("rounds.jsonl", [round_line(number, names, accuracy, models)])
        folder.append(
            "clients.jsonl",
            [
                {"round": number, "attempt": 1, "phase": "evaluate", "site": site, "model": 0}
                | {"accuracy": float(rng.random()), "verdict": "ok"}
                for site in names
            ],
        )


def whole_run(tmp_path, n=20, k=4, rounds=6, models=1, **settings):
    """Return the folder of a finished run that groups its sites, if k > 0."""
    rng = np.random.default_rng(n + rounds)
    folder, names = new_folder(tmp_path, **settings), site_names(n)
    write_sites(folder, names)
    if k:
        write_groups(folder, names, k, rng)
    write_rounds(folder, names, rounds, rng, models)
    folder.set_status("finished", done=rounds, rounds=rounds)
    folder.write_json(
        "results.json",
        {"accuracy": 0.8125, "loss": 0.5, "best_accuracy": 0.875, "best_round": 3}
        | {"rounds": rounds, "mean_clients_per_round": 2.0, "bytes_down": 12_345_678}
        | {"bytes_up": 2_345, "seconds": 3725.0, "selected": {names[0]: 9}, "models": []},
    )
    return folder


def report(folder):
    """Write the report, check what holds for every report, and return what a reader sees."""
    path = write_report(folder)
    assert path == folder.path / "report.html"
    page = path.read_text(encoding="utf-8")
    reader = Reader(page)
    check_self_contained(reader, page)
    for file in (folder.path / "plots").glob("*"):
        ElementTree.fromstring(file.read_bytes())
    return reader


def check_self_contained(reader, page):
    assert not {"script", "link", "iframe", "object", "embed", "base"} & set(reader.tags)
    for name, value in reader.attributes:
        assert not name.startswith("on")
        if name in {"src", "href", "xlink:href", "action", "poster", "data", "srcset"}:
            assert value.startswith(("#", "data:image/png;base64,")), value
    assert "@import" not in page
    assert set(re.findall(r"url\((.)", page)) <= {"#"}
    ids = [value for name, value in reader.attributes if name == "id"]
    assert [name for name, count in Counter(ids).items() if count > 1] == []


def plot_names(folder):
    return {file.stem for file in (folder.path / "plots").glob("*.svg")}


GROUPED = {"components", "silhouettes", "label-shares", "dissimilarities"}
ROUNDS = {"progress", "participation", "traffic", "energy"}
ALL = GROUPED | ROUNDS | {"accuracy-spread"}


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """The folder of a finished run, and what a reader sees of its report."""
    folder = whole_run(tmp_path_factory.mktemp("finished"))
    return folder, report(folder)


def test_the_first_screen_of_a_finished_run_has_its_final_figures(finished):
    _, page = finished
    assert page.fact("Accuracy at the end") == "81.2 %"
    assert page.fact("Best accuracy") == "87.5 %"
    assert "in round 3" in page.texts
    assert page.fact("Rounds") == "6 of 6"
    assert page.fact("Sites") == "20"
    assert "with 1,400 training rows" in page.texts
    assert page.fact("Clusters") == "4"
    assert page.fact("Sites that trained per round") == "2"
    assert page.fact("Sent to the sites") == "12.3 MB"
    assert page.fact("Sent by the sites") == "2.35 kB"
    assert page.fact("Time") == "1 h 2 min"
    assert page.fact("Replies rejected") == page.fact("Replies missing") == "0"
    assert "The run finished after 6 rounds." in page.text
    assert "digits" in page.text


def test_every_picture_is_there_with_caption_and_words_for_the_blind(finished):
    folder, page = finished
    assert plot_names(folder) == ALL
    assert page.tags["svg"] == page.tags["figcaption"] == len(ALL)
    spoken = [value for name, value in page.attributes if name == "aria-label"]
    assert len(spoken) == len(ALL)
    assert all("Look" in words for words in spoken)
    assert "Not shown:" not in page.text


def test_the_same_folder_gives_the_same_bytes(tmp_path):
    folder = whole_run(tmp_path, n=5, k=2, models=4)
    write_report(folder)
    files = [folder.path / "report.html", *sorted((folder.path / "plots").glob("*"))]
    before = [file.read_bytes() for file in files]
    write_report(folder)
    assert [file.read_bytes() for file in files] == before


def test_worst_tenth_is_that_of_the_last_round(tmp_path):
    folder = new_folder(tmp_path)
    lines = [
        {"round": 2, "phase": "evaluate", "site": f"s{i}", "accuracy": i / 16, "verdict": "ok"}
        for i in range(1, 13)
    ]
    folder.append("clients.jsonl", [{**lines[0], "round": 1, "accuracy": 0.0}, *lines])
    assert report(folder).fact("Worst tenth of the sites") == "9.4 %"  # (1/16 + 2/16) / 2


def test_a_failed_run_shows_its_error_first_and_what_is_known(tmp_path):
    folder, names = new_folder(tmp_path), site_names(5)
    write_sites(folder, names)
    write_rounds(folder, names, 3, np.random.default_rng(0))
    error = "round 4: site 'site-03': array 'w' holds <NaN>; set on-bad-update=drop"
    folder.set_status("failed", done=3, rounds=20, error=error)
    page = report(folder)
    assert error in page.texts
    assert page.texts.index(error) < page.texts.index("Pictures")
    assert page.fact("Rounds") == "3 of 20"
    assert page.fact("Accuracy, last round") == "80.0 %"
    assert page.fact("Best accuracy") == "80.0 %"
    assert page.fact("Sent to the sites") == "6 MB"
    assert page.fact("Time") == "6 s"
    assert "The run failed after 3 of 20 rounds." in page.text


def test_a_running_run_before_its_first_round(tmp_path):
    folder = new_folder(tmp_path)
    folder.set_status("running", done=0, rounds=20)
    page = report(folder)
    assert "The run is not over: 0 of 20 rounds" in page.text
    assert plot_names(folder) == set()
    assert page.texts.count("not known") >= 5
    assert "no round has ended" in page.text


def test_a_folder_with_nothing_in_it_gives_a_page(tmp_path):
    page = report(RunFolder(tmp_path))
    assert "The settings of this run are not known." in page.text
    assert "Not known: config.toml is missing." in page.text


@pytest.mark.parametrize(
    ("missing", "lost"),
    [
        ("config.toml environment.json", set()),
        ("status.json results.json", set()),
        ("rounds.jsonl", ROUNDS),
        ("sites.json clients.jsonl", {"accuracy-spread"}),
        ("clusters.json", {"silhouettes"}),
        ("dissimilarity.npz", GROUPED - {"silhouettes"}),
    ],
)
def test_missing_files_cost_their_own_pictures_only(tmp_path, missing, lost):
    folder = whole_run(tmp_path, n=6, k=2, rounds=2)
    for name in missing.split():
        (folder.path / name).unlink()
    page = report(folder)
    assert plot_names(folder) == ALL - lost
    assert page.fact("Sites") == "6"


def test_a_method_without_groups_says_so(tmp_path):
    folder = whole_run(tmp_path, k=0)
    page = report(folder)
    assert plot_names(folder) == ALL - GROUPED
    assert "This method does not group sites." in page.text
    assert page.fact("Clusters") == "none"


def test_descriptors_that_are_not_labels_are_not_shown_as_labels(tmp_path):
    folder = whole_run(tmp_path)
    write_groups(folder, site_names(20), 4, np.random.default_rng(0), kind="model-update")
    page = report(folder)
    assert plot_names(folder) == ALL - {"label-shares"}
    assert "sites were compared by model-update, not by their labels" in page.text


def test_a_number_of_clusters_that_was_set_has_no_silhouettes(tmp_path):
    folder = whole_run(tmp_path)
    clusters = folder.read_json("clusters.json") | {"scores": {}, "chosen_by": "num-clusters"}
    folder.write_json("clusters.json", clusters)
    page = report(folder)
    assert "silhouettes" not in plot_names(folder)
    assert "no number of clusters was scored against another" in page.text
    assert "4 clusters, as was set; formed before round 1." in page.text


def test_several_models_get_a_curve_each_and_one_gets_none(tmp_path, finished):
    several = whole_run(tmp_path, n=3, k=0, models=3)
    write_report(several)
    for folder, expected in ((finished[0], 0), (several, 3)):
        svg = (folder.path / "plots" / "progress.svg").read_text(encoding="utf-8")
        assert len(set(re.findall(r">(model \d+)<", svg))) == expected


def test_rejected_and_missing_replies_are_listed_with_their_reasons(tmp_path):
    folder, names = new_folder(tmp_path), site_names(4)
    rejected = {"site": "site-03", "phase": "train", "reason": "array 'w' holds NaN"}
    line = round_line(1, names, 0.5, rejected=[rejected], missing=["site-00"])
    folder.append("rounds.jsonl", [line])
    page = report(folder)
    assert page.fact("Replies rejected") == page.fact("Replies missing") == "1"
    assert ["1", "1", "site-03", "train", "array 'w' holds NaN"] in page.rows
    assert ["1", "1", "site-00", "not known", "no reply"] in page.rows
    assert page.row("1")[:8] == ["1", "1", "site-03", "train", "array 'w' holds NaN"]


def test_a_site_that_trained_and_then_did_not_evaluate_did_train(tmp_path):
    folder, names = new_folder(tmp_path), ["a", "b"]
    folder.append("rounds.jsonl", [round_line(1, names, 0.5, trained=["a"], missing=["a", "b"])])
    report(folder)
    svg = (folder.path / "plots" / "participation.svg").read_text(encoding="utf-8")
    (cells,) = re.findall(r'base64,\s*([^"]+)"', svg)
    alpha = Image.open(io.BytesIO(base64.b64decode(cells))).getchannel("A")
    assert np.asarray(alpha).tolist() == [[255], [0]]
    assert ">no reply<" in svg  # of b


def test_of_very_many_refused_replies_the_last_are_shown(tmp_path):
    folder, names = new_folder(tmp_path), site_names(50)
    lines = [round_line(n, names, 0.5, missing=names) for n in range(1, 21)]
    folder.append("rounds.jsonl", lines)
    page = report(folder)
    assert page.fact("Replies missing") == "1000"
    assert "1000 replies did not count. The last 200 are shown" in page.text
    assert sum(row[-1] == "no reply" for row in page.rows) == 200


def test_tables_hold_the_rounds_the_members_and_the_settings(tmp_path):
    page = report(whole_run(tmp_path, n=6, k=2, rounds=2, **{"learning-rate": 0.0375}))
    assert page.row("2") == [
        *("2", "1", "80.0 %", "0.2000", "0.1250", "2", "0", "0"),
        *("2 MB", "500 kB", "2"),
    ]
    assert ["0", "3", "site-00, site-02, site-04"] in page.rows
    assert page.row("learning-rate") == ["learning-rate", "0.0375"]
    assert page.row("numpy") == ["numpy", np.__version__]
    site = page.row("site-00")
    assert site[:5] == ["site-00", "0", "70", "18", "9"]
    assert site[-1] == "label-histogram, model"


def test_long_tables_are_folded(tmp_path, finished):
    short, long = finished[1], report(whole_run(tmp_path, rounds=60))
    assert "Show 60 rows" in long.text
    assert long.tags["details"] == short.tags["details"] + 1


@pytest.mark.parametrize("name", ["<b>bold</b>", "</svg><script>alert(1)</script>", "a\x1b&"])
def test_names_from_sites_are_text_and_never_markup(tmp_path, name):
    folder, names = new_folder(tmp_path), ["a", name]
    rng = np.random.default_rng(0)
    write_sites(folder, names)
    write_groups(folder, names, 2, rng)
    write_rounds(folder, names, 2, rng)
    rejected = {"site": name, "phase": name, "reason": name}
    folder.append("rounds.jsonl", [round_line(3, names, 0.5, rejected=[rejected])])
    folder.set_status("failed", done=2, rounds=3, error=name)
    page = report(folder)
    assert page.row(name)[0] == name
    assert page.tags["b"] == 0


def test_values_that_are_absent_or_nan_are_not_known(tmp_path):
    folder = new_folder(tmp_path)
    folder.append(
        "rounds.jsonl",
        [
            {"round": 1},
            {"round": 2, "accuracy": float("nan"), "models": [{}], "rejected": [{}]},
            {"round": 3, "accuracy": None, "loss": None, "train_loss": None, "seconds": None},
        ],
    )
    folder.append("clients.jsonl", [{"round": 1}, {"round": 1, "site": "a"}])
    folder.write_json("clusters.json", {"round": 0, "scores": {"2": float("nan")}})
    folder.write_json("results.json", {})
    page = report(folder)
    assert page.fact("Best accuracy") == page.fact("Sent by the sites") == "not known"
    assert plot_names(folder) == {"progress"}


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    folder = whole_run(tmp_path, n=4, k=2, rounds=2)
    (folder.path / "dissimilarity.npz").write_bytes(b"PK\x03\x04 cut off")
    with (folder.path / "rounds.jsonl").open("a") as file:
        file.write('{"round": 3, "accur')
    page = report(folder)
    assert "dissimilarity.npz: " in page.text
    assert "rounds.jsonl: lines cut off: 1" in page.text


@pytest.mark.parametrize(
    ("n", "k", "rounds", "models"), [(2, 2, 1, 1), (3, 1, 2, 30), (45, 45, 3, 45)]
)
def test_runs_of_unusual_shape(tmp_path, n, k, rounds, models):
    folder = whole_run(tmp_path, n=n, k=k, rounds=rounds, models=models)
    report(folder)
    assert plot_names(folder) == ALL


def test_a_thousand_sites_and_rounds_stay_under_ten_megabytes(tmp_path):
    rng = np.random.default_rng(3)
    folder, names = new_folder(tmp_path), site_names(1000)
    write_sites(folder, names)
    write_groups(folder, names, 40, rng)
    chosen = rng.random((1000, 1000)) < 0.3
    lines = [
        round_line(
            number,
            names,
            0.5,
            40,
            trained=[names[i] for i in np.flatnonzero(row)],
            missing=names[:3],
        )
        for number, row in enumerate(chosen, start=1)
    ]
    folder.append("rounds.jsonl", lines)
    path = write_report(folder)
    assert path.stat().st_size < 10_000_000
