"""Settings of a run: the themes of this folder, and what the pieces that it uses declare."""

import functools
import os
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, Self, TypeVar

import tomli_w
from pydantic import ModelWrapValidatorHandler, PrivateAttr, model_validator
from pydantic.fields import FieldInfo

from common import plugins
from common.config import chosen
from common.config.aggregation import AggregationSettings
from common.config.cohorts import CohortSettings
from common.config.data import DataSettings
from common.config.energy import EnergySettings
from common.config.execution import ExecutionSettings
from common.config.privacy import PrivacySettings
from common.config.rounds import RoundSettings
from common.config.training import TrainingSettings
from common.exact.learners import with_defaults
from common.objectives import objective_of
from common.plugins import PieceSettings
from common.schema import Scalar, at_most, kebab_case
from common.tasks import Task

P = TypeVar("P", bound=PieceSettings)


class Settings(
    AggregationSettings,  # pydantic puts the last one's keys first
    ExecutionSettings,
    EnergySettings,
    PrivacySettings,
    RoundSettings,
    CohortSettings,
    TrainingSettings,
    DataSettings,
):
    """Everything that decides a run's numbers, plus where they are written.

    What concerns every run is an attribute. What the run's pieces declare for themselves (see
    :mod:`common.plugins`) is read by :meth:`of`, and is else a setting like any other. Values for
    pieces that the run does not use are checked and left out.
    """

    _pieces: tuple[PieceSettings, ...] = PrivateAttr(())

    @model_validator(mode="wrap")
    @classmethod
    def _with_pieces(
        cls, values: dict[str, object], handler: ModelWrapValidatorHandler[Self]
    ) -> Self:
        """Return the settings of every run first, then those of the pieces that they choose."""
        named = with_defaults(plugins.with_names(values))
        own = {key: value for key, value in named.items() if _is_own(key)}
        given = {kebab_case(key): value for key, value in named.items() if key not in own}
        settings = handler(own)
        settings._pieces, others = chosen.parsed(settings, given)
        for piece in (*settings._pieces, *others):
            piece.check(settings)
        return settings

    @classmethod
    def more_keys(cls, values: Mapping[str, object]) -> frozenset[str]:
        """Return the keys of the chosen pieces, and of all pieces where those do not do."""
        named = plugins.with_names(values)
        declared = chosen.declared_of(named, cls.model_fields)
        keys = {kebab_case(name) for piece in declared for name in piece.model_fields}
        if all(_is_own(key) or key in keys for key in named):
            return frozenset(keys)
        return frozenset(map(kebab_case, cls.fields(named)))

    @classmethod
    def fields(cls, values: Mapping[str, object] = MappingProxyType({})) -> Mapping[str, FieldInfo]:
        """Return every setting there is by its name in snake_case, all pieces' included.

        Those of pieces that have no name of their own are there where ``values`` name their place.
        """
        named = {kebab_case(key): value for key, value in plugins.with_names(values).items()}
        own = cls.model_fields
        return own | chosen.declared_fields(plugins.all_piece_settings(named), own)

    @property
    def pieces(self) -> tuple[PieceSettings, ...]:
        """What the run's pieces declare, with the run's values."""
        return self._pieces

    def of(self, declared: type[P]) -> P:
        """Return the settings that a piece declares; the defaults where the run does not use it."""
        found = (piece for piece in self._pieces if isinstance(piece, declared))
        return next(found, None) or _defaults(declared)

    def to_dict(self) -> dict[str, Scalar]:
        """Return all values with kebab-case keys: every run's, then its pieces'."""
        values = super().to_dict()
        for piece in self._pieces:
            values |= piece.to_dict()
        return values

    def defaults(self) -> dict[str, Scalar]:
        """Return what each value of :meth:`to_dict` is where nobody sets it."""
        fields = dict(type(self).model_fields)
        for piece in self._pieces:
            fields |= type(piece).model_fields
        return {kebab_case(name): field.default for name, field in fields.items()}

    def __repr_args__(self) -> Iterable[tuple[str, Any]]:
        """Yield what is not at its default, by its name in Python."""
        yield from super().__repr_args__()
        for piece in self._pieces:
            yield from piece.__repr_args__()

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.num_clients:
            for key in ("clients_per_round", "num_clusters", "max_clusters"):
                at_most(key, getattr(self, key), "num-clients", self.num_clients)
        usual = type(self).model_fields["local_epochs"].default
        if self.local_steps and self.local_epochs != usual:
            raise ValueError(
                f"local-steps = {self.local_steps} and local-epochs = {self.local_epochs} both say "
                "how long a site trains; leave one of them out"
            )
        if self.may_end_early and self.tuning_epochs:
            raise ValueError(
                f"{self.may_end_early} and fine-tune-epochs = {self.tuning_epochs}: sites "
                "fine-tune after the last round, which must be known; leave one of them out"
            )
        if self.may_end_early and self.update_privacy == "central-dp":
            raise ValueError(
                f"{self.may_end_early} and update-privacy = central-dp: when a run stops would "
                "tell of the sites' rows; leave one of them out"
            )
        return self

    @property
    def tuning_epochs(self) -> int:
        """For how many epochs the sites train on after the last round; 0: for none."""
        asked = self.fine_tune_epochs
        return objective_of(self).fine_tune_epochs if asked is None else asked

    @property
    def more_metrics(self) -> tuple[str, ...]:
        """The metrics beside the task's score, which every run has."""
        task = self.learning_task
        if self.metrics == "auto":
            return task.usual_metrics
        names = (word.strip() for word in self.metrics.split(","))
        return tuple(name for name in names if name not in ("auto", task.score_name))

    @property
    def judged_by(self) -> str:
        """The name of the metric that targets are of: the task's score, unless another is named."""
        if self.target_metric == "auto":
            return self.learning_task.score_name
        return self.target_metric

    @property
    def learning_task(self) -> Task:
        """What is learnt, without what only the data know of it.

        Of own files that are to say it themselves it is classification, until whoever has them
        sets it.
        """
        from common.data.datasets import learnt  # reads no file, but loads all that could

        return learnt(self.task, self.dataset)

    @model_validator(mode="after")
    def _check_metrics(self) -> Self:
        names = self.more_metrics
        if len(set(names)) < len(names):
            raise ValueError(f"metrics = {self.metrics!r}: name each once")
        if self.target_metric not in ("auto", self.learning_task.score_name, *names):
            raise ValueError(
                f"target-metric = {self.target_metric!r}: must be the task's score, "
                f"{self.learning_task.score_name}, or one of metrics = {self.metrics!r}"
            )
        return self

    def to_toml(self) -> str:
        """Return a TOML text that :func:`load` reads back to equal settings."""
        return tomli_w.dumps(self.to_dict())

    def with_absolute_paths(self) -> Self:
        """Return a copy whose paths do not depend on the working directory."""
        changes: dict[str, Scalar] = {"output_dir": _absolute(self.output_dir)}
        paths = {key: getattr(self, key) for key in ("data_dir", "table_schema", "resume")}
        for piece in self._pieces:
            paths |= {key: getattr(piece, key) for key in sorted(piece.paths)}
        changes |= {key: _absolute(path) for key, path in paths.items() if path}
        if self.radio_profile.endswith(".toml"):
            changes["radio_profile"] = _absolute(self.radio_profile)
        return self.replace(**changes)


def _is_own(key: str) -> bool:
    """Return whether a key, in either spelling, is of every run."""
    return key.replace("-", "_") in Settings.model_fields


@functools.cache
def _defaults(declared: type[P]) -> P:
    return declared()


def _absolute(path: str) -> str:
    return os.path.abspath(os.path.expanduser(path))
