"""A third party's package, installed beside Coterie and used by its commands."""

import json
import shutil
import subprocess
from pathlib import Path

PROJECT = Path(__file__).parent / "fixtures" / "acme"
BY_NAME = {
    "dataset": "acme-waves",
    "model": "acme-cnn",
    "metrics": "macro-f1,acme-sureness",
    "strategy": "acme-fewest",
}
BY_PLACE = {
    "dataset": "acme-waves",  # whose name is part of what decides the held-out rows
    "model": "acme_pieces.learning:cnn",
    "metrics": "macro-f1,acme_pieces.learning:sureness",
    "strategy": "acme_pieces.choosing:FEWEST",
}
REST = {
    "split": "by-user",
    "num-clients": 0,
    "num-server-rounds": 2,
    "local-epochs": 1,
    "workers": 1,
    "optimizer": "adam",
    "learning-rate": 0.01,
    "schedule": "cosine",
}


class Commands:
    """``coterie`` of an environment in which the package is installed."""

    def __init__(self, program, folder, environment):
        self.program = [str(word) for word in program]
        self.folder = folder
        self.environment = environment

    def __call__(self, *words, code=0):
        done = subprocess.run(
            [*self.program, *map(str, words)],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
        )
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout + done.stderr

    def simulate(self, pieces, **more):
        values = REST | pieces | {key.replace("_", "-"): value for key, value in more.items()}
        words = [f"{key}={value}" for key, value in values.items()]
        return Path(self("simulate", *words).splitlines()[-1].removeprefix("run: "))


def figures(run):
    lines = [json.loads(line) for line in (run / "rounds.jsonl").read_text().splitlines()]
    kept = ("accuracy", "loss", "macro-f1", "trained")
    return [tuple(line.get(name) for name in kept) for line in lines]


def cut_off(run):
    """Make of a run's folder what it was when its server was killed in round 2."""
    status = json.loads((run / "status.json").read_text())
    (run / "status.json").write_text(json.dumps(status | {"state": "failed", "round": 1}))
    shutil.rmtree(run / "checkpoints" / "round-0002")


def play(coterie, packages):
    """Use the package in every way; ``packages`` is the folder that it is installed in."""
    assert "acme-fewest" in coterie("methods")
    named, placed = (coterie.simulate(pieces, acme_size=3) for pieces in (BY_NAME, BY_PLACE))
    assert figures(named) == figures(placed)
    assert len(figures(named)) == 2
    versions = json.loads((placed / "pieces.json").read_text())
    assert versions == {
        f"{key} = '{BY_PLACE[key].rpartition(',')[2]}'": "acme-pieces 0.1" for key in BY_PLACE
    }
    before = figures(placed)
    cut_off(placed)
    coterie("resume", placed)
    assert figures(placed) == before
    grid = ("compare", "strategy=similarity", "metric=acme-largest,euclidean", "name=acme")
    rest = ("model=acme-cnn", "dataset=acme_pieces.waves:waves", "num-clients=0", "split=by-user")
    grid += (*rest, "num-server-rounds=1", "local-epochs=1", "clients-per-round=2")
    assert "2 of 2 runs done" in coterie(*grid)
    flow = {"strategy": "acme-widest", "messages": "acme-spread"}
    privacy = json.loads((coterie.simulate(BY_NAME | flow) / "privacy.json").read_text())
    assert "query.acme_spread" in {entry["kind"] for entry in privacy["releases"]}

    cut_off(placed)
    [info] = packages.glob("acme_pieces-*.dist-info")
    text = (info / "METADATA").read_text()
    (info / "METADATA").write_text(text.replace("Version: 0.1", "Version: 0.2"))
    refusal = "was acme-pieces 0.1 and is acme-pieces 0.2 now; put the old one back"
    assert f"strategy = 'acme_pieces.choosing:FEWEST' {refusal}" in coterie(
        "resume", placed, code=2
    )
    assert f"dataset = 'acme_pieces.waves:waves' {refusal}" in coterie(*grid, code=2)
