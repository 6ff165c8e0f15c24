"""Settings of a run: the themes of this folder and what the pieces declare, as one schema."""

import functools
import os
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, ClassVar, Self, TypeVar, cast

import tomli_w
from pydantic import create_model, model_validator
from pydantic.fields import FieldInfo

from common import plugins
from common.config.aggregation import AggregationSettings
from common.config.cohorts import CohortSettings
from common.config.data import DataSettings
from common.config.energy import EnergySettings
from common.config.execution import ExecutionSettings
from common.config.privacy import PrivacySettings
from common.config.rounds import RoundSettings
from common.config.training import TrainingSettings
from common.errors import ConfigError
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

    What concerns every run is an attribute. What a piece declares for itself (see
    :mod:`common.plugins`) is read by :meth:`of`, and is else a setting like any other.
    """

    pieces: ClassVar[tuple[type[PieceSettings], ...]] = ()
    """Whose keys these settings have, too."""

    def __new__(cls, **values: object) -> Self:
        """Make settings that have the pieces' keys, too."""
        if cls is Settings:
            cls = _of_values(values)  # type: ignore[assignment]
        return super().__new__(cls)

    @model_validator(mode="before")
    @classmethod
    def _named(cls, values: dict[str, object]) -> dict[str, object]:
        return plugins.with_names(values)

    @classmethod
    def parse(cls, values: Mapping[str, object], *, source: str = "") -> Self:
        """Check values with kebab-case keys; a :class:`ConfigError` begins with the source."""
        return cast(Self, super(Settings, _of_values(values)).parse(values, source=source))

    @classmethod
    def fields(cls, values: Mapping[str, object] = MappingProxyType({})) -> Mapping[str, FieldInfo]:
        """Return every setting there is by its name in snake_case, the pieces' included.

        Those of pieces that have no name of their own are there where ``values`` name their place.
        """
        return _of_values(values).model_fields

    def of(self, declared: type[P]) -> P:
        """Return the settings that a piece declares."""
        return declared.model_construct(
            **{name: getattr(self, name) for name in declared.model_fields}
        )

    def __reduce__(self) -> tuple[Any, ...]:
        # The class has no name that another process could import.
        return Settings.parse, (self.to_dict(),)

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
        for declared in self.pieces:
            self.of(declared).check(self)
        return self

    @property
    def tuning_epochs(self) -> int:
        """For how many epochs the sites train on after the last round; 0: for none."""
        asked = self.fine_tune_epochs
        return objective_of(self).fine_tune_epochs if asked < 0 else asked

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
        theirs = (piece.paths for piece in self.pieces)
        for key in ("data_dir", "table_schema", "resume", *frozenset[str]().union(*theirs)):
            if getattr(self, key):
                changes[key] = _absolute(getattr(self, key))
        if self.radio_profile.endswith(".toml"):
            changes["radio_profile"] = _absolute(self.radio_profile)
        return self.replace(**changes)


def _of_values(values: Mapping[str, object]) -> type[Settings]:
    """Return :class:`Settings` with the keys of all pieces that a run of these values can have."""
    named = {kebab_case(key): value for key, value in plugins.with_names(values).items()}
    return _with_keys_of(plugins.all_piece_settings(named))


@functools.cache
def _with_keys_of(pieces: tuple[type[PieceSettings], ...]) -> type[Settings]:
    """Return :class:`Settings` with the keys that pieces declare behind its own."""
    fields: dict[str, FieldInfo] = {}
    for piece in pieces:
        for name, field in piece.model_fields.items():
            others = fields.setdefault(name, field)
            if name in Settings.model_fields or repr(others) != repr(field):
                raise ConfigError(
                    f"{kebab_case(name)}: {piece.__module__}.{piece.__name__} declares it, and "
                    "there is another setting of that name; rename it"
                )
    keys: dict[str, Any] = {name: (field.annotation, field) for name, field in fields.items()}
    whole = create_model("Settings", __base__=Settings, __module__=__name__, **keys)
    whole.pieces = pieces
    return whole


def _absolute(path: str) -> str:
    return os.path.abspath(os.path.expanduser(path))
