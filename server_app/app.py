"""The ServerApp: settings -> method -> strategy -> run folder."""

import logging
import sys
from pathlib import Path

from flwr.app import ConfigRecord, Context
from flwr.serverapp import Grid, ServerApp

from common import config, messages, models
from common.config import Settings
from common.errors import CoterieError
from server_app import methods, report
from server_app.methods import LabelGroups, Method
from server_app.model_groups import ModelGroups
from server_app.releases import RecordingGrid
from server_app.roster import Roster, introduce
from server_app.run_folder import RunFolder
from server_app.strategies.base import FederatedTraining
from server_app.strategies.label_distribution import LabelDistributionClustering
from server_app.strategies.model_similarity import ModelSimilarityClustering

log = logging.getLogger("coterie")

_STATE = "coterie"

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run a whole federation; any error is written to the run folder before it is raised."""
    show_progress()
    settings = config.from_run_config(context.run_config).with_absolute_paths()
    method = methods.build(settings)
    folder = RunFolder.create(settings)
    folder.set_status("running", done=0, rounds=settings.num_server_rounds)
    context.state[_STATE] = ConfigRecord({"run-folder": str(folder.path)})
    log.info("writing to %s", folder.path)
    recording = RecordingGrid(grid, folder)
    try:
        _run(recording, settings, method, folder)
    except BaseException as error:
        done = folder.read_json("status.json")["round"]
        text = str(error) if isinstance(error, CoterieError) else repr(error)
        folder.set_status("failed", done=done, rounds=settings.num_server_rounds, error=text)
        raise
    finally:
        recording.write()
        report.write_report(folder)
    log.info("report: %s", (folder.path / "report.html").as_uri())
    log.info("run: %s", folder.path)


def show_progress() -> None:
    """Let the run's progress lines reach standard output, unless somebody listens already."""
    if not log.hasHandlers():
        handler = logging.StreamHandler(sys.stdout)
        handler.setFormatter(logging.Formatter("%(message)s"))
        log.addHandler(handler)
    log.setLevel(logging.INFO)


def run_folder_of(context: Context) -> Path:
    """Return the run folder that :func:`main` wrote for a context."""
    return Path(str(context.state.config_records[_STATE]["run-folder"]))


def _run(grid: Grid, settings: Settings, method: Method, folder: RunFolder) -> None:
    roster = introduce(grid, expected=settings.num_clients, timeout=settings.round_timeout)
    folder.write_json("sites.json", [vars(site) for site in roster.sites])
    first = roster.sites[0]
    initial = models.initial_parameters(settings, tuple(first.input_shape), first.num_classes)
    strategy = _strategy(method, settings, roster, folder)
    strategy.start(
        grid,
        messages.encode_arrays(initial),
        num_rounds=settings.num_server_rounds,
        timeout=settings.round_timeout,
    )
    rounds = settings.num_server_rounds
    folder.set_status("finished", done=rounds, rounds=rounds)


def _strategy(
    method: Method, settings: Settings, roster: Roster, folder: RunFolder
) -> FederatedTraining:
    kind: type[FederatedTraining] = FederatedTraining
    if isinstance(method.group, LabelGroups):
        kind = LabelDistributionClustering
    elif isinstance(method.group, ModelGroups):
        kind = ModelSimilarityClustering
    return kind(method, settings, roster, folder)
