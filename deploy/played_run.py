"""Played runs: what Python code sees of a run's folder, finished or still running."""

import base64
import io
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from common.errors import DataError
from server_app.record.clusters_format import ClustersFile
from server_app.record.format import ClientLine, ResultsFile, RoundLine, StatusFile
from server_app.record.run_folder import RunFolder

if TYPE_CHECKING:
    from pandas import DataFrame
    from sklearn.pipeline import Pipeline
    from torch import nn

__all__ = ["PlayedRun", "load_run"]


class PlayedRun:
    """A run's folder as tables, numbers and models; every attribute reads it anew.

    It can stand wherever a path can. A notebook shows its state and its curve.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __fspath__(self) -> str:
        """Return the folder's path."""
        return str(self.folder)

    def __repr__(self) -> str:
        """Say where it lies and how far it is."""
        status = self._status
        return f"<run {self.folder}: {status.state}, round {status.round} of {status.rounds}>"

    def __eq__(self, other: object) -> bool:
        """Whether it is the same folder."""
        return isinstance(other, PlayedRun) and self.folder == other.folder

    def __hash__(self) -> int:
        return hash(self.folder)

    @property
    def state(self) -> str:
        """``running``, ``finished`` or ``failed``."""
        return self._status.state

    @property
    def rounds(self) -> "DataFrame":
        """A row per attempt at a round; columns are the keys of ``rounds.jsonl``."""
        return self._lines(RoundLine.FILE)

    @property
    def clients(self) -> "DataFrame":
        """A row per message to a site; columns are the keys of ``clients.jsonl``."""
        return self._lines(ClientLine.FILE)

    @property
    def clusters(self) -> Mapping[str, int]:
        """Site -> cluster; empty where nobody is grouped, or not yet."""
        there = (self.folder / ClustersFile.FILE).exists()
        return dict(RunFolder(self.folder).load(ClustersFile).sites) if there else {}

    @property
    def results(self) -> dict[str, Any]:
        """``results.json``; :class:`DataError` for a run that has not finished."""
        return self._file(ResultsFile.FILE)

    @property
    def report(self) -> Path:
        """The report, a page."""
        return self.folder / "report.html"

    def network(self, k: int = 0) -> "nn.Module":
        """Return the network of cluster ``k``, or of all where there is one.

        While the run goes on, it is that of the last checkpoint.
        """
        from server_app.record.using_models import load_network

        return load_network(self.folder, k)

    def predict(self, rows: "DataFrame | np.ndarray", k: int | None = None) -> "DataFrame":
        """Return what a model makes of raw rows: ``prediction`` and a probability per class.

        A row for each one given, in order; those of a table keep its index.

        Args:
            rows: (n, *input shape), or a table with the columns of the training. They are scaled
                here, as the training rows were.
            k: the cluster whose model it is; None where there is one for all.
        """
        from deploy.predictions import ModelInUse

        return ModelInUse(self.folder, k).of_rows(rows)

    def preprocessing(self, site: str | os.PathLike[str] | None = None) -> "Pipeline":
        """Return what prepares raw rows of a table, a fitted pipeline of scikit-learn.

        It takes a DataFrame of texts as they stand in the file (``pandas.read_csv(file, dtype=str,
        keep_default_na=False)``) or of typed columns; what it gives the network takes as float32.

        Args:
            site: a real site's ``site.toml``, where sites prepared their rows by own figures.
        """
        from deploy.predictions import preprocessing_for

        return preprocessing_for(self.folder, None if site is None else Path(site)).pipeline()

    def _repr_html_(self) -> str:
        from server_app.report.round_plots import progress

        lines = [line for line in RunFolder(self.folder).each(RoundLine) if line.has_result]
        if not lines:
            return f"<pre>{self!r}</pre>"
        columns = ([getattr(line, name) for line in lines] for name in ("accuracy", "loss"))
        accuracy, loss = (np.array([column]) for column in columns)
        rounds = np.array([line.round for line in lines])
        figure = progress(rounds, accuracy, loss, np.array([line.train_loss for line in lines]))
        picture = io.BytesIO()
        figure.savefig(picture, format="png")
        data = base64.b64encode(picture.getvalue()).decode()
        last = f"accuracy {lines[-1].accuracy:.1%} in round {lines[-1].round}"
        return f'<pre>{self!r}</pre><img alt="{last}" src="data:image/png;base64,{data}">'

    @property
    def _status(self) -> StatusFile:
        return RunFolder(self.folder).load(StatusFile)

    def _file(self, name: str) -> dict[str, Any]:
        try:
            found: dict[str, Any] = RunFolder(self.folder).read_json(name)
        except FileNotFoundError:
            raise DataError(f"{self.folder} has no {name}: the run is {self.state}") from None
        return found

    def _lines(self, name: str) -> "DataFrame":
        from pandas import DataFrame

        path = self.folder / name
        text = path.read_text(encoding="utf-8") if path.exists() else ""
        # The last line of a run that goes on may not be whole yet.
        whole = text[: text.rfind("\n") + 1].splitlines()
        return DataFrame([json.loads(line) for line in whole])


def load_run(folder: str | os.PathLike[str]) -> PlayedRun:
    """Return the run in a folder; :class:`DataError` if it is none."""
    path = Path(folder).expanduser().absolute()
    if not (path / StatusFile.FILE).exists():
        raise DataError(f"{path} is no run's folder: it has no {StatusFile.FILE}")
    return PlayedRun(path)
