"""Grid of a comparison: methods x scenarios x seeds, from a TOML file and words.

A scenario is what the sites' data look like: settings of :data:`SCENARIO`. Any other setting with
several values makes several methods, which are compared with each other within each scenario.
"""

import hashlib
import itertools
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from common.config import Scalar, Settings, kebab_case, read_toml, split_word, unknown_name
from common.errors import ConfigError, CoterieError

SCENARIO = frozenset(
    {
        *("dataset", "data-dir", "label-column", "client-column", "test-fraction"),
        *("num-clients", "split", "dirichlet-alpha", "num-partitions", "min-partition-size"),
    }
)
_SEED = "seed"
_RANGE = re.compile(r"(\d+)\.\.(\d+)")
_LARGEST = 100_000  # runs of one comparison; more is a slip of the keyboard

# Where a run is written and how it is executed changes none of its numbers.
_ELSEWHERE = frozenset(
    {
        *("output-dir", "name", "workers", "download", "checkpoint-every", "resume"),
        *("log-format", "report"),
    }
)
# These too, unless the run ends when the target was held: they are figures of a finished curve.
_TARGET = frozenset({"target-accuracy", "sustained-rounds"})
_SINGLE = _ELSEWHERE | _TARGET | {"stop-at-target"}
_DEFAULT_NAME = "comparison"

Values = dict[str, tuple[object, ...]]


@dataclass(frozen=True)
class Case:
    """One run of a comparison."""

    name: str
    """Of its method in the file; empty where words alone make the methods."""
    varied: tuple[tuple[str, Scalar], ...]
    """The settings that a list gave to the method, with this one's values."""
    scenario: str
    """What distinguishes its data from the other scenarios'; empty if there is one only."""
    settings: Settings

    @cached_property
    def method(self) -> str:
        """The name of its row."""
        return self.method_without("")

    def method_without(self, left_out: str) -> str:
        """Return the name of its row without the value of one setting."""
        words = [
            _value(value) if key == "strategy" else _pair(key, value)
            for key, value in self.varied
            if key != left_out
        ]
        return ", ".join(word for word in (self.name, *words) if word) or self.settings.strategy

    @property
    def label(self) -> str:
        """The run in words, for progress and errors."""
        parts = (self.method, self.scenario, f"seed {self.settings.seed}")
        return ", ".join(part for part in parts if part)

    @property
    def digest(self) -> str:
        """Sixteen hexadecimal digits that differ wherever two runs' numbers may."""
        text = json.dumps(identity(self.settings), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def identity(settings: Settings) -> dict[str, Scalar]:
    """Return the settings that decide a run's numbers, less those that have their default.

    Without the defaults, a setting that a later version adds does not make every run a new one.
    """
    without = _ELSEWHERE if settings.stop_at_target else _ELSEWHERE | _TARGET
    fields = type(settings).model_fields
    default = {kebab_case(name): field.default for name, field in fields.items()}
    values = settings.to_dict()
    return {k: v for k, v in values.items() if k not in without and v != default[k]}


@dataclass(frozen=True)
class PaperFigures:
    """What a paper reports of one method in one scenario."""

    method: str
    at: tuple[tuple[str, object], ...]
    """Settings that a run must have: of the scenario, and what the figures depend on beside it."""
    figures: Mapping[str, float]
    """By name of :data:`PAPER_FIGURES`."""

    def fits(self, case: Case) -> bool:
        """Whether the figures are of this case's method and scenario."""
        values = case.settings.to_dict()
        return self.method == case.method and all(values[key] == value for key, value in self.at)


PAPER_FIGURES = ("rounds", "clients", "accuracy", "energy", "training-energy", "deviation")
"""Rounds to the target, mean clients per round, accuracy (%), energy and that of training alone (%
of the reference's), standard deviation of the accuracy in the rounds that hold the target (points).
"""


@dataclass(frozen=True)
class Grid:
    """All runs of a comparison, and how they are shown."""

    name: str
    """Of its folder and its page."""
    title: str
    note: str
    reference: str
    """The method that the others are held against; empty: none."""
    cases: tuple[Case, ...]
    paper: tuple[PaperFigures, ...] = ()
    source: str = ""
    """Where the paper's figures stand."""

    def __post_init__(self) -> None:
        """Refuse an empty comparison, a run that is listed twice, and a reference without runs."""
        if not self.cases:
            raise ConfigError("the comparison has no runs: name at least one method")
        labels: dict[tuple[str, str, int], Case] = {}
        for case in self.cases:
            key = (case.method, case.scenario, case.settings.seed)
            if labels.setdefault(key, case) is not case:
                raise ConfigError(f"{case.label} stands in the comparison twice; leave one out")
        methods = {case.method for case in self.cases}
        if self.reference and self.reference not in methods:
            raise ConfigError(f"reference: {unknown_name('method', self.reference, methods)}")

    @property
    def output(self) -> Path:
        """The comparison's folder."""
        return Path(self.cases[0].settings.output_dir) / self.name

    @property
    def target(self) -> float:
        """The target accuracy; 0: none."""
        return self.cases[0].settings.target_accuracy

    @property
    def window(self) -> int:
        """Consecutive rounds that hold an accuracy."""
        return self.cases[0].settings.sustained_rounds


def read_grid(
    file: Path | None, words: Iterable[str] = (), *, quick: bool = False, reference: str = ""
) -> Grid:
    """Return the comparison that a TOML file describes, changed by words; every run is checked.

    Args:
        file: with the tables that docs/compare.md explains; None: words alone.
        words: ``key=value``, ``key=value,value`` or ``key=first..last``.
        quick: take what the file says under ``[quick]``.
        reference: the method that the others are held against; empty: the file's.
    """
    plan = _Plan.of(read_toml(file) if file else {}, quick=quick, source=str(file or ""))
    given = _from_words(words)
    plan.give(given)
    plan.refuse_several()
    common = dict(plan.settings)
    name = str(common.pop("name", (file.stem if file else _DEFAULT_NAME,))[0])
    cases = tuple(_cases(plan.methods, common))
    return Grid(
        name=f"{name}-quick" if quick and "name" not in given else name,
        title=plan.title or name,
        note=plan.note,
        reference=reference or plan.reference or _first(cases),
        cases=cases,
        paper=tuple(figures for figures in plan.paper if _stands_in(figures, cases)),
        source=plan.source,
    )


def _stands_in(figures: PaperFigures, cases: Iterable[Case]) -> bool:
    """Whether a figure is of a run asked for: a quick variant leaves methods out."""
    return any(figures.fits(case) for case in cases)


def _first(cases: tuple[Case, ...]) -> str:
    return cases[0].method if cases else ""


# --- from settings with several values to runs --------------------------------------------------


def _cases(methods: Mapping[str, Values], common: Values) -> Iterable[Case]:
    """Yield all runs, one seed after another, so that a table of few seeds exists early."""
    seeds = common.get(_SEED, (Settings.parse({}).seed,))
    scenarios = _product({k: v for k, v in common.items() if k in SCENARIO})
    shared = {k: v for k, v in common.items() if k not in SCENARIO and k != _SEED}
    size = len(seeds) * len(scenarios) * sum(_size(shared | own) for own in methods.values())
    if size > _LARGEST:
        raise ConfigError(f"the comparison has {size} runs; at most {_LARGEST}: leave values out")
    for seed, scenario, (name, own) in itertools.product(seeds, scenarios, methods.items()):
        values = shared | own
        for chosen in _product(values):
            yield _case(name, scenario, chosen, seed, _several(values), _several(common))


def _size(values: Values) -> int:
    size = 1
    for several in values.values():
        size *= len(several)
    return size


def _case(
    name: str,
    scenario: Mapping[str, object],
    chosen: Mapping[str, object],
    seed: object,
    varied: frozenset[str],
    axes: frozenset[str],
) -> Case:
    values = {**scenario, **chosen, _SEED: seed}
    try:
        settings = Settings.parse(values).with_absolute_paths()
    except CoterieError as error:
        problem = ", ".join(f"{key}={values[key]}" for key in (*sorted(varied), _SEED))
        raise ConfigError(f"{name or problem}: {error}") from None
    known = settings.to_dict()
    rows = tuple((key, known[key]) for key in chosen if key in varied)
    data = ", ".join(_pair(key, known[key]) for key in scenario if key in axes)
    return Case(name, rows, data, settings)


def _several(values: Values) -> frozenset[str]:
    return frozenset(key for key, several in values.items() if len(several) > 1)


def _product(values: Values) -> list[dict[str, object]]:
    return [
        dict(zip(values, chosen, strict=True)) for chosen in itertools.product(*values.values())
    ]


def _pair(key: str, value: Scalar) -> str:
    return f"{key}={_value(value)}"


def _value(value: Scalar) -> str:
    if isinstance(value, float):
        return f"{value:g}"
    return Path(value).name if isinstance(value, str) and "/" in value else str(value)


# --- from files and words to settings with several values ---------------------------------------


def _from_words(words: Iterable[str]) -> Values:
    found: Values = {}
    for word in words:
        key, text = split_word(word)
        if key in found:
            raise ConfigError(f"{key} is given twice; give each setting once: {key}=value,value")
        found[key] = tuple(
            value for part in text.split(",") for value in _expanded(key, part.strip())
        )
    return found


def _expanded(key: str, value: object) -> Iterable[object]:
    """Return a value, or the integers from first to last that ``first..last`` stands for."""
    match = _RANGE.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        return (value,)
    first, last = map(int, match.groups())
    if not first <= last < first + _LARGEST:
        raise ConfigError(f"{key} = {value}: a range goes up, and by less than {_LARGEST}")
    return range(first, last + 1)


def _from_table(table: Mapping[str, Any], where: str) -> Values:
    texts = {key: ",".join(map(str, v)) if isinstance(v, list) else v for key, v in table.items()}
    known = set(map(kebab_case, Settings.fields(texts)))
    for key, value in table.items():
        if key not in known:
            raise ConfigError(f"{where}: {unknown_name('setting', key, known)}")
        if isinstance(value, dict) or value == []:
            raise ConfigError(f"{where}: {key}: give a value, or a list of values")
    return {
        key: tuple(
            entry
            for given in (value if isinstance(value, list) else [value])
            for entry in _expanded(key, given)
        )
        for key, value in table.items()
    }


@dataclass
class _Plan:
    """What a TOML file says, with the words put over it."""

    settings: Values
    methods: dict[str, Values]
    title: str
    note: str
    reference: str
    paper: tuple[PaperFigures, ...]
    source: str
    file: str

    @classmethod
    def of(cls, content: Mapping[str, Any], *, quick: bool, source: str) -> "_Plan":
        allowed = {"title", "note", "reference", "settings", "methods", "quick", "paper"}
        _only(content, allowed, source)
        methods = dict(content.get("methods") or {"": {}})
        settings = dict(content.get("settings", {}))
        if quick:
            if "quick" not in content:
                raise ConfigError("--quick: needs a TOML file with a table [quick]")
            _only(content["quick"], {"settings", "methods"}, f"{source}: quick")
            settings |= content["quick"].get("settings", {})
            methods = _named(methods, content["quick"].get("methods", list(methods)), source)
        paper = content.get("paper", {})
        _only(paper, {"source", "figures"}, f"{source}: paper")
        return cls(
            settings=_from_table(settings, f"{source}: settings"),
            methods={
                name: _from_table(own, f"{source}: methods.{name}") for name, own in methods.items()
            },
            title=str(content.get("title", "")),
            note=str(content.get("note", "")),
            reference=str(content.get("reference", "")),
            paper=tuple(
                _paper_figures(entry, f"{source}: paper.figures", content.get("methods", {}))
                for entry in paper.get("figures", ())
            ),
            source=str(paper.get("source", "")),
            file=source,
        )

    def refuse_several(self) -> None:
        """Refuse several values of what all runs must have in common."""
        for key in sorted(_SINGLE):
            if any(
                len(values.get(key, ())) > 1 for values in (self.settings, *self.methods.values())
            ):
                raise ConfigError(f"{key}: all runs of a comparison have the same; give one value")

    def give(self, words: Values) -> None:
        """Put words over the file's settings; what a method is made of stays as it is."""
        for key in words:
            for name, own in self.methods.items():
                if key in own:
                    raise ConfigError(f"{key}: the method {name!r} of {self.file} sets it")
        self.settings |= words


def _named(methods: Mapping[str, Any], names: Iterable[str], source: str) -> dict[str, Any]:
    unknown = [name for name in names if name not in methods]
    if unknown:
        raise ConfigError(f"{source}: quick: {unknown_name('method', unknown[0], methods)}")
    return {name: methods[name] for name in names}


def _only(table: Mapping[str, Any], allowed: set[str], where: str) -> None:
    for key in table:
        if key not in allowed:
            raise ConfigError(f"{where}: {unknown_name('key', key, allowed)}")


def _paper_figures(entry: Mapping[str, Any], where: str, methods: Iterable[str]) -> PaperFigures:
    _only(entry, {"method", "at", *PAPER_FIGURES}, where)
    method = str(entry.get("method", ""))
    if method.partition(",")[0] not in methods:
        raise ConfigError(f"{where}: {unknown_name('method', method, methods)}")
    at = _from_table(entry.get("at", {}), f"{where}: at")
    figures = {name: float(entry[name]) for name in PAPER_FIGURES if name in entry}
    return PaperFigures(method, tuple((key, values[0]) for key, values in at.items()), figures)
