"""Planning of a simulation: its settings resolved on the machine that plays it, data and all."""

import logging
import os
from dataclasses import replace

from client_app.simulated_sites import simulated_federation, with_task
from common import logs
from common.config import Settings
from common.data.datasets import locate
from common.data.in_memory import Dataset
from deploy.simulation.site_files import files_of
from server_app.plan import Plan, PlannedData
from server_app.protection.two_party import check_sizes

__all__ = ["planned", "resolved"]

log = logging.getLogger("coterie")


def resolved(settings: Settings, *, own_data: bool = False) -> Plan:
    """Return a simulation's plan as far as names and values decide it: no row is read for it.

    Args:
        settings: of the run.
        own_data: whether the sites have data of their own; else the data set is split.

    Raises:
        CoterieError: one line for what cannot start.
    """
    if not own_data:
        settings = settings.replace(dataset=locate(settings.dataset))
    settings = settings.with_absolute_paths()
    if settings.table_schema or not own_data:
        settings = with_task(settings)
    return Plan.of(settings)


def planned(plan: Plan, *, own_data: bool = False) -> Plan:
    """Return a simulation's plan with its data, its engine, and every check that there is.

    Args:
        plan: as :func:`resolved` returns it; one that has its data is returned as it is.
        own_data: as there.

    Raises:
        CoterieError: one line for what cannot start.
    """
    # Imports of seconds, after everything that can be refused without them.
    from client_app.training.convolutional import require_compiler
    from client_app.training.engine import decided, trained_by
    from client_app.training.loop import choose_device

    if plan.data is not None:
        return plan
    settings = plan.settings
    # Asking CUDA itself would start it here, and a process that has started it cannot be forked.
    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
    choose_device(settings.device)
    require_compiler(settings)
    if own_data or files_of(settings):
        return replace(plan, settings=decided(settings, None))
    data = _dealt(settings)
    if not settings.resume:  # a run that goes on has taken its products
        check_sizes(plan.method.needs, data.rows, settings)
    settings = decided(settings, data.shapes, weighs=data.weighs)
    words = trained_by(settings, *data.shapes, weighs=data.weighs)
    return replace(plan, settings=settings, data=data, trained_by=words)


def _dealt(settings: Settings) -> PlannedData:
    dataset, sites = simulated_federation(settings)
    _say_guesses(settings, dataset)
    return PlannedData(
        rows={site.name: len(site.train) for site in sites},
        inputs=dataset.inputs,
        num_outputs=dataset.num_outputs,
        weighs=dataset.train.weight is not None,
        preprocessing=dataset.preprocessing,
    )


def _say_guesses(settings: Settings, dataset: Dataset) -> None:
    """Log what was guessed of a table that has no schema, before anything else."""
    if dataset.guesses:
        logs.show_progress(as_json=settings.log_format == "json")
        for guess in dataset.guesses:
            log.info("%s", guess)
