"""Precheck as a command: one round, the costs between the sites, and what they advise.

It is ``strategy=ot-groups`` with one round: what a ServerApp runs on real sites as well.
"""

import logging
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common import config, logs
from common.config import Scalar, Settings
from common.data.datasets import class_names, locate
from common.errors import ConfigError, DataError
from common.pilot.settings import PLAYED_BY, PilotSettings
from common.tables.classes import in_order, usual_coding
from common.tables.reading import is_table
from common.tables.table_schema import sorted_values
from deploy.simulation.planning import resolved
from server_app.plan import Plan
from server_app.record.pilot_format import PilotRecord
from server_app.record.precheck_format import PrecheckFile
from server_app.record.run_folder import RunFolder
from server_app.transport.verdicts import Verdict

__all__ = [
    "EXIT_CODES",
    "PrecheckPlan",
    "precheck_plan",
    "progress_to_stderr",
    "result",
    "run",
    "summary",
]

Json = Mapping[str, Any]

STRATEGY, SUMMED = PLAYED_BY
"""With costs, and with the pilot alone."""

EXIT_CODES: Mapping[str, int] = {
    Verdict.BENEFICIAL: 0,
    Verdict.UNCERTAIN: 3,
    Verdict.DETRIMENTAL: 4,
}
"""What the process ends with; 1 and 2 are errors, as everywhere."""

# One FedAvg round is what the cost is defined on; more rounds train the groups as well.
log = logging.getLogger("coterie")

_FIXED = {
    "strategy": STRATEGY,
    "num-server-rounds": "1",
    "objective": "fedavg",
    "name": "precheck",
}
_OWN_FILES = "own-files"


@dataclass(frozen=True)
class PrecheckPlan:
    """What is to be run.

    Attributes:
        plan: of the run, as its settings alone decide it.
        files: one for each site; none: the data set of the settings is split.
    """

    plan: Plan
    files: tuple[Path, ...]

    @property
    def settings(self) -> Settings:
        """Of the run."""
        return self.plan.settings


def precheck_plan(words: Sequence[str], config_file: Path | None) -> PrecheckPlan:
    """Return what the words ask for: settings as ``key=value``, every other word is a file.

    Raises:
        ConfigError: settings that cannot be used, one file alone, or two of one name.
        DataError: a file that is not there.
    """
    files = [Path(locate(word)) for word in words if not config.is_setting(word)]
    given = [word for word in words if config.is_setting(word)]
    keys = {word.partition("=")[0].strip() for word in given}
    given += [f"{key}={value}" for key, value in _fixed(given, files).items() if key not in keys]
    costs_alone = "strategy" in keys and f"strategy={SUMMED}" not in given
    if "pilot" not in keys and not costs_alone:
        given.append("pilot=true")
    if files and "dataset" in keys:
        raise ConfigError("dataset and files both say what the data are; leave one of them out")
    settings = config.load(config_file, given)
    if settings.strategy != STRATEGY and not settings.of(PilotSettings).pilot:
        raise ConfigError(
            f"strategy = {settings.strategy!r}: a precheck compares sites by their OT costs; "
            "leave strategy out, or use coterie simulate"
        )
    _check_names(files)
    return PrecheckPlan(resolved(settings, own_data=bool(files)), tuple(files))


def _fixed(given: Sequence[str], files: Sequence[Path]) -> Mapping[str, str]:
    # Costs need what a model makes of single rows, which the server does not see with secagg.
    fixed = _FIXED | ({"strategy": SUMMED} if "secagg=true" in given else {})
    if files:
        return fixed | {"dataset": _OWN_FILES, "num-clients": str(len(files))}
    if "split=by-user" in given:
        return fixed | {"num-clients": "0"}
    return fixed


def _check_names(files: Sequence[Path]) -> None:
    if len(files) == 1:
        raise ConfigError(
            f"{files[0]}: one file is one site; name a file for each, or use "
            f"dataset={files[0].name} client-column=... split=by-user"
        )
    names = [file.stem for file in files]
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise ConfigError(f"two files are called {twice[0]!r}: a site goes by its file's name")


def run(planned: PrecheckPlan) -> Path:
    """Run it and return the absolute path of the run folder."""
    # Imports of seconds, after everything that can be refused without them.
    from deploy.simulation.grid import simulate

    if not planned.files:
        return simulate(planned.plan)
    with tempfile.TemporaryDirectory(prefix="coterie-") as folder:
        return simulate(planned.plan, _node_configs(planned, Path(folder)))


def _node_configs(planned: PrecheckPlan, folder: Path) -> list[dict[str, Scalar]]:
    """Return each site's own say, as the sites' owners would write it: they open their files."""
    from client_app.site_config import SiteConfig

    settings = planned.settings
    table_schema = os.path.abspath(settings.table_schema) if settings.table_schema else ""
    # A schema says which classes there are.
    classes = [] if table_schema else _common_classes(planned.files, settings)
    return [
        SiteConfig.parse(
            {
                "site": file.stem,
                "dataset": _OWN_FILES,
                "data-path": str(file),
                "label-column": settings.label_column,
                "classes": ",".join(classes),
                "group-column": settings.group_column,
                "split-column": settings.split_column,
                "table-schema": table_schema,
                "test-fraction": settings.test_fraction,
                "state-dir": str(folder / file.stem),
                "device": settings.device,
            },
            source=str(file),
        ).to_dict()
        for file in planned.files
    ]


def _common_classes(files: Sequence[Path], settings: Settings) -> list[str]:
    columns = settings.label_column, settings.group_column, settings.split_column
    read = [class_names(file, *columns) for file in files]
    logs.show_progress(as_json=settings.log_format == "json")
    for guess in (guess for _, guessed in read for guess in guessed):
        log.info("%s", guess)
    codings = [names for names, _ in read]
    names = sorted_values({name for coding in codings for name in coding})
    if not any(map(is_table, files)):
        return [*(in_order(names) or names)]
    if usual_coding(codings) is not None:
        written = "; ".join(dict.fromkeys(", ".join(coding) for coding in codings))
        raise DataError(
            f"label-column={settings.label_column}: do the files code the same classes "
            f"differently ({written})? Then write them alike; if not, set table-schema: "
            "coterie data check FILES... proposes one"
        )
    ordered = in_order(names)
    if ordered is None:
        raise DataError(
            f"label-column={settings.label_column}: which of {names[0]!r} and {names[1]!r} is "
            "positive? Set table-schema: coterie data check FILES... proposes one"
        )
    if len(ordered) == 2:
        log.info("positive class: %s", ordered[1])
    return [*ordered]


def progress_to_stderr() -> None:
    """Keep standard output for what a program reads."""
    handler = logs.ProgressHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(message)s"))
    log.addHandler(handler)


def result(folder: Path) -> dict[str, Any]:
    """Return what a precheck found, with the paths of its page and folder."""
    record: dict[str, Any] = RunFolder(folder).read_json(PrecheckFile.FILE)
    return record | {"report": str(folder / "precheck.html"), "run": str(folder)}


def summary(record: Json) -> list[str]:
    """Return lines for a terminal: the answer, a line per site and group, and where more stands."""
    from server_app.report.precheck_words import headline

    found = PrecheckFile.from_json(record)
    lines = _by_cost(found) if found.pilot is None else _by_pilot(found.pilot)
    where = [f"page: {Path(record['report']).as_uri()}", f"run: {record['run']}"]
    return [headline(found), *lines, *where]


def _by_cost(found: PrecheckFile) -> list[str]:
    from server_app.report.precheck_words import SIGNS, approach, cost, told

    width = max(len(site.site) for site in found.sites)
    lines = []
    for site in found.sites:
        words = told(site, found.thresholds)
        chance = "not known" if site.null is None else cost(site.null)
        figures = f"cost {cost(site.cost)}  chance {chance}"
        sign, name = SIGNS[site.verdict], site.site.ljust(width)
        lines.append(f"  {sign} {name}  group {site.group + 1}  {figures}  {words}")
    for number, group in enumerate(found.groups, start=1):
        lines.append(f"group {number}: {', '.join(group.sites)}: {approach(group)}")
    return lines


def _by_pilot(pilot: PilotRecord) -> list[str]:
    from server_app.report.precheck_words import SIGNS, candidate_words, points, told_by_pilot

    words, width = candidate_words(pilot), max(len(site.site) for site in pilot.sites)
    lines = [
        f"  {SIGNS[site.verdict]} {site.site.ljust(width)}  {told_by_pilot(site, words)}; "
        f"recommended: {words[site.recommended]}"
        + (f"; to tell: {site.needs}" if site.needs and site.held_out else "")
        for site in pilot.sites
    ]
    lines += [
        f"on average over the sites: {points(each.change)} ({points(each.low)} to "
        f"{points(each.high)}) points by {each.words}"
        for each in pilot.candidates
    ]
    lines += [f"left out: {what}" for what in pilot.skipped]
    return [*lines, f"next: {pilot.to_do}", f"  {pilot.command}"]
