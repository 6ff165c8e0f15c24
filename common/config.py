"""The settings of a run: one schema for defaults, TOML files, words and Flower's run-config.

Keys are kebab-case everywhere a person types them. A setting has one meaning and one name; an
unknown key, a bad value or an impossible combination is a :class:`ConfigError` of one line per
problem, raised before anything starts. Names that belong to a catalogue (``strategy``,
``metric``, ``dataset``) are checked by the file that holds it, so that adding touches one file.
"""

import functools
import os
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, Self

import tomli_w
from pydantic import Field, model_validator

from common.data.shifts import IMAGE_SHIFTS, SYNTHETIC_SHIFTS
from common.errors import ConfigError
from common.schema import Scalar as Scalar
from common.schema import Schema as Schema
from common.schema import allowed_values as allowed_values
from common.schema import kebab_case as kebab_case
from common.schema import unknown_name as unknown_name


class Settings(Schema):
    """Everything that decides a run's numbers, plus where they are written."""

    # Data
    dataset: str = Field("digits", description="a data set's name, or a .npz, .csv or image folder")
    data_dir: str = Field("", description="folder that holds the data set's files")
    download: bool = Field(False, description="fetch missing files into data-dir")
    label_column: str = Field("label", description="csv: the column with the class")
    client_column: str = Field("", description="csv: the column that names each row's client")
    test_fraction: float = Field(
        0.2, gt=0, lt=1, description="held out per class where the data has no test split"
    )
    num_clients: int = Field(
        20, ge=0, le=1_000_000, description="sites; 0 with split=by-user: as many as there are"
    )
    split: Literal["dirichlet", "dirichlet-partitioned", "iid", "by-user", "shards"] = Field(
        "dirichlet", description="how the training rows are dealt to the sites"
    )
    dirichlet_alpha: float = Field(
        0.3, gt=0, le=1e6, description="small: each site sees few classes (the papers' beta)"
    )
    num_partitions: int = Field(
        2, ge=1, description="class blocks of split=dirichlet-partitioned (the paper's rho)"
    )
    shift: str = Field(
        "none",
        description="what differs between simulated sites; dataset=synthetic with split=by-user: "
        f"{', '.join(SYNTHETIC_SHIFTS)}; images: {', '.join(IMAGE_SHIFTS)}",
    )
    shift_size: float = Field(
        0.0, ge=0, le=1, description="0: sites alike, 1: as different as this shift makes them"
    )
    synthetic_rows: int = Field(
        50_000, ge=20, le=10_000_000, description="dataset=synthetic: rows of all sites together"
    )
    min_partition_size: int = Field(10, ge=1, description="fewest training rows of a site")
    seed: int = Field(0, ge=0, lt=2**63, description="of every draw but keys and privacy noise")

    # Training on the sites
    model: Literal[
        "auto",
        "lenet",
        "mlp",
        "fama-cnn",
        "fama-cnn-small",
        "pereira-mlp",
        "pereira-cnn",
        "resnet18",
        "unet3d",
    ] = Field(
        "auto",
        description="network; auto: lenet for images, unet3d for volumes, mlp for rows of features",
    )
    batch_size: int = Field(16, ge=1, description="rows per SGD step")
    local_epochs: int = Field(5, ge=1, description="passes over a site's rows per round")
    learning_rate: float = Field(0.05, gt=0, description="of SGD")
    momentum: float = Field(0.5, ge=0, lt=1, description="of SGD")
    weight_decay: float = Field(0.0, ge=0, description="of SGD (L2)")
    device: str = Field(
        "auto",
        pattern=r"^(auto|cpu|cuda(:\d+)?)$",
        description="auto, cpu, cuda or cuda:<index>",
    )

    objective: Literal["fedavg", "fedprox", "ditto", "pfedme", "local"] = Field(
        "fedavg",
        description="what a site minimises; ditto, pfedme: a personal model beside the common one; "
        "local: nothing is shared",
    )
    proximal_mu: float = Field(0.01, ge=0, description="fedprox: strength of mu/2 ||w - w_t||^2")
    personal_lambda: float = Field(
        1.0, gt=0, description="ditto, pfedme: strength of lambda/2 ||personal - common||^2"
    )
    pfedme_steps: int = Field(5, ge=1, description="pfedme: SGD steps on each batch (K)")
    pfedme_beta: float = Field(
        1.0, gt=0, le=10, description="pfedme: share of the way to the average the server goes"
    )

    # Who trains, and with which model
    strategy: str = Field("similarity", description="a method of the catalogue: coterie methods")
    metric: str = Field("euclidean", description="label dissimilarity of strategy=similarity")
    num_clusters: int = Field(0, ge=0, description="0: the method chooses")
    max_clusters: int = Field(0, ge=0, description="largest number tried; 0: no bound")
    clients_per_round: int = Field(
        0, ge=0, description="0: one per cluster, or everybody where there are no clusters"
    )
    routing: Literal["one-model", "per-cluster"] = Field(
        "one-model",
        description="label clusters: which model a site gets; model clusters have one each",
    )
    selection: Literal["auto", "all", "random", "worst", "link-aware"] = Field(
        "auto",
        description="inside clusters: all, one at random, the half of lowest accuracy, or one at "
        "random with cheaper uploads preferred; auto: the method's own rule",
    )
    cluster_at_round: int = Field(
        10, ge=1, description="model clusters: the round whose models decide"
    )
    recluster_every: int = Field(0, ge=0, description="rounds between groupings; 0: group once")
    cka_layer: str = Field(
        "probabilities",
        min_length=1,
        description="fedsccs: layer compared; probabilities, or a child of the network",
    )
    cka_probe: Literal["auto", "public", "noise", "client-rows"] = Field(
        "auto",
        description="rows on which models are compared; auto: probe-file if given, else noise; "
        "client-rows discloses rows of every site",
    )
    cka_probe_size: int = Field(
        100, ge=2, le=100_000, description="probe rows; client-rows: of each site"
    )
    probe_file: str = Field("", description="cka-probe=public: .npz with X, standardised rows")
    flis_threshold: float = Field(
        0.8, gt=0, le=1, description="flis: share of equal predictions inside a group"
    )
    ot_variant: str = Field(
        "paper", description="ot-groups: reading of the OT cost: paper, full-covariance or authors"
    )
    ot_feature_weight: float = Field(
        -1, ge=-1, description="ot-groups: weight of the feature cost; -1: the variant's own"
    )
    ot_label_weight: float = Field(
        -1, ge=-1, description="ot-groups: weight of the label cost; -1: the variant's own"
    )
    ot_beneficial: float = Field(
        0, ge=0, le=1, description="ot-groups: cost up to which data fit; 0: the variant's own"
    )
    ot_detrimental: float = Field(
        0, ge=0, le=1, description="ot-groups: cost from which they do not; 0: the variant's own"
    )
    min_rows: int = Field(
        20, ge=2, description="ot-groups: rows of a class that a site needs for it to be compared"
    )
    normalise: Literal["client", "class"] = Field(
        "client", description="simclust, repclust: label counts per site, or first per class"
    )
    power_of_choice_candidates: int = Field(
        30, ge=1, description="power-of-choice: sites asked for their loss in a round"
    )
    delta_mode: Literal["practical", "full"] = Field(
        "practical", description="delta: updates of those who trained, or of everybody each round"
    )
    fedcor_warmup: int = Field(
        10, ge=1, description="fedcor: first rounds, drawn at random, in which all report losses"
    )
    fedcor_interval: int = Field(
        10, ge=1, description="fedcor: rounds between two trainings of its Gaussian process"
    )

    # Rounds
    num_server_rounds: int = Field(20, ge=1, description="rounds of training")
    target_accuracy: float = Field(
        0.0, ge=0, le=1, description="whose rounds and joules are reported; 0: none"
    )
    sustained_rounds: int = Field(
        3, ge=1, description="consecutive rounds that hold the target accuracy"
    )
    stop_at_target: bool = Field(False, description="end the run once the target was held")
    round_timeout: float = Field(3600, gt=0, description="seconds to wait for a round's replies")
    deadline_factor: float = Field(
        0,
        ge=0,
        description="wait this many times the median of past exchanges; 0: round-timeout alone",
    )
    quorum: float = Field(
        0, ge=0, le=1, description="share of the cohort whose updates a round needs; 0: one update"
    )
    on_bad_update: Literal["drop", "fail"] = Field(
        "drop", description="what an unusable reply does: leave it out, or stop the run"
    )
    checkpoint_every: int = Field(
        1, ge=0, description="rounds between checkpoints; 0: none, and no coterie resume"
    )
    resume: str = Field(
        "", description="run folder to go on with, under its own settings; see coterie resume"
    )

    # What leaves a site with noise
    label_privacy: Literal["none", "gaussian", "k-rr", "paper", "two-party"] = Field(
        "none",
        description="label histograms: as they are, with discrete Gaussian noise, with randomised "
        "labels, with the paper's noise, or not at all (distances by two-party computation)",
    )
    epsilon: float = Field(
        1.0, gt=0, le=1000, description="label-privacy=gaussian, k-rr: of one site's histogram"
    )
    delta: float = Field(
        1e-5, gt=0, le=0.01, description="of every noise that is not pure; below 1 / rows"
    )
    label_gamma: float = Field(
        1.0, gt=0, description="label-privacy=paper: noise of gamma / clients-per-round on shares"
    )

    # Joules
    energy: Literal["off", "codecarbon"] = Field(
        "off", description="codecarbon: meter the machines that train and the server's"
    )
    energy_country: str = Field(
        "",
        pattern=r"^([A-Z]{3})?$",
        description="ISO code of three letters, as DEU, for kg CO2e; empty: joules alone",
    )
    radio_profile: str = Field(
        "wifi6", min_length=1, description="wifi6, wired, or a .toml file: what sending costs"
    )
    link_rate: str = Field(
        "",
        description="simulated sites' links in Mbit/s: a rate, a range to draw from as 6-54, or "
        "empty for the radio profile's",
    )
    statistics_privacy: Literal["none", "zcdp"] = Field(
        "none",
        description="class statistics of the OT cost: as they are, or with concentrated privacy",
    )
    rho: float = Field(
        1.0, gt=0, le=1000, description="statistics-privacy=zcdp: of all classes together, once"
    )
    secagg: bool = Field(False, description="sites mask updates, the server reads their sums only")
    secagg_min_cohort: int = Field(3, ge=3, description="fewest sites in such a sum")
    two_party: bool = Field(
        False,
        description="ot-groups: no row leaves a site; every two multiply theirs together, and "
        "class statistics do the rest",
    )
    reveal: Literal["products", "cost"] = Field(
        "products",
        description="two-party: what the server reads of two sites: cosines between their rows, or "
        "the cost alone, which a third site works out",
    )
    update_privacy: Literal["none", "central-dp", "local-dp"] = Field(
        "none",
        description="updates: averaged as they are, averaged with noise by the server, or made "
        "noisy by each site",
    )
    update_epsilon: float = Field(
        8.0, gt=0, le=1000, description="update-privacy: of all rounds together, for a whole site"
    )
    clip_norm: float = Field(
        1.0,
        gt=0,
        description="update-privacy: largest length (L2) of an update; longer ones shrink",
    )

    # Where the run is written, and how it is executed
    output_dir: str = Field("runs", min_length=1, description="folder that receives the run folder")
    name: str = Field(
        "run",
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$",
        description="start of the run folder's name: 1 to 64 letters, digits, dots, - or _",
    )
    log_format: Literal["text", "json"] = Field(
        "text", description="of the run's log lines; json: one object per line"
    )
    workers: int = Field(0, ge=0, le=1024, description="simulation processes; 0: one per core")
    engine: Literal["loop", "batched", "compiled", "stacked"] = Field(
        "batched",
        description="batched: hand-written steps for dense networks, sites evaluated together; "
        "compiled: for convolutions too, which needs a C compiler and is not bound to torch's "
        "rounding (max-pooling may decide a near tie otherwise); "
        "stacked: sites of a simulation side by side in one network, for a GPU, with rounding of "
        "its own; loop: autograd, one site at a time",
    )

    @model_validator(mode="before")
    @classmethod
    def _by_centre(cls, values: dict[str, object]) -> dict[str, object]:
        """Return the values given; the sites are the data set's own where nobody says which."""
        if values.get("dataset") not in _BY_CENTRE or "split" in values:
            return values
        return {"split": "by-user", "num-clients": 0} | values

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.num_clients == 0 and self.split != "by-user":
            raise ValueError("num-clients = 0: only split=by-user knows the number of sites itself")
        if self.num_clients:
            for key in ("clients_per_round", "num_clusters", "max_clusters"):
                _at_most(key, getattr(self, key), "num-clients", self.num_clients)
            if self.split == "dirichlet-partitioned":
                _at_most("num_partitions", self.num_partitions, "num-clients", self.num_clients)
        if self.cka_probe == "public" and not self.probe_file:
            raise ValueError("cka-probe = public: name the file of rows with probe-file")
        if self.probe_file and self.cka_probe in ("noise", "client-rows"):
            raise ValueError(f"probe-file and cka-probe = {self.cka_probe}: leave one of them out")
        if self.label_privacy == "paper" and not self.clients_per_round:
            raise ValueError(
                "label-privacy = paper: divides its noise by clients-per-round = 0; set that, or "
                "use label-privacy=gaussian"
            )
        if self.stop_at_target and self.update_privacy == "central-dp":
            raise ValueError(
                "stop-at-target = True and update-privacy = central-dp: when a run stops would "
                "tell of the sites' rows; leave one of them out"
            )
        if self.stop_at_target and not self.target_accuracy:
            raise ValueError("stop-at-target = True: set target-accuracy, which is 0 (none)")
        if self.max_clusters == 1:
            raise ValueError("max-clusters = 1: one cluster groups nobody; use 2 or more, or 0")
        if self.max_clusters and self.num_clusters:
            _at_most("num_clusters", self.num_clusters, "max-clusters", self.max_clusters)
        if self.reveal == "cost" and not self.two_party:
            raise ValueError("reveal = cost: that is for two-party=true; set it, or leave it out")
        self._check_shift()
        self._check_objective()
        return self

    def _check_shift(self) -> None:
        """Refuse a shift that nobody knows, or that the data set does not have."""
        known = (*SYNTHETIC_SHIFTS, *IMAGE_SHIFTS)
        if self.shift not in ("none", *known):
            raise ValueError(unknown_name("shift", self.shift, ("none", *known)))
        if self.shift_size and self.shift == "none":
            raise ValueError(f"shift-size = {self.shift_size}: set shift={', '.join(known)}")
        synthetic = (self.dataset, self.split) == ("synthetic", "by-user")
        if self.shift in SYNTHETIC_SHIFTS and not synthetic:
            raise ValueError(
                f"shift = {self.shift}: only the sites of dataset=synthetic with split=by-user are "
                "shifted so; set both, or shift=none"
            )

    def _check_objective(self) -> None:
        """Refuse strengths that the objective does not use, or cannot."""
        for key, users in _STRENGTHS.items():
            value = getattr(self, key)
            if self.objective not in users and value != type(self).model_fields[key].default:
                raise ValueError(
                    f"{kebab_case(key)} = {value}: objective = {self.objective} does not use it; "
                    f"leave it out, or set objective={' or '.join(users)}"
                )
        rate = self.learning_rate * self.personal_lambda
        if self.objective == "pfedme" and rate > 1:
            raise ValueError(
                f"personal-lambda = {self.personal_lambda}: times learning-rate = "
                f"{self.learning_rate} it must be at most 1, or pfedme's model overshoots the "
                "personal one; lower either"
            )

    @property
    def is_personal(self) -> bool:
        """Whether sites keep models of their own, which are then what a site uses."""
        return self.objective in ("ditto", "pfedme", "local")

    @property
    def shares_model(self) -> bool:
        """Whether there is a model that sites train together."""
        return self.objective != "local"

    def to_toml(self) -> str:
        """Return a TOML text that :func:`load` reads back to equal settings."""
        return tomli_w.dumps(self.to_dict())

    def with_absolute_paths(self) -> Self:
        """Return a copy whose paths do not depend on the working directory."""
        changes: dict[str, Scalar] = {"output_dir": os.path.abspath(_expand(self.output_dir))}
        if self.data_dir:
            changes["data_dir"] = os.path.abspath(_expand(self.data_dir))
        for key in ("probe_file", "resume"):
            if getattr(self, key):
                changes[key] = os.path.abspath(_expand(getattr(self, key)))
        if self.radio_profile.endswith(".toml"):
            changes["radio_profile"] = os.path.abspath(_expand(self.radio_profile))
        return self.replace(**changes)


MAY_CHANGE = frozenset(
    {
        *("resume", "workers", "data-dir", "output-dir", "round-timeout", "deadline-factor"),
        "log-format",
    }
)
"""Settings that a resumed run may be given anew: where things lie and how long to wait."""

_BY_CENTRE = ("isic2019", "ixi-tiny")
"""Data sets whose centres are the sites unless the settings say otherwise."""

_STRENGTHS = {
    "proximal_mu": ("fedprox",),
    "personal_lambda": ("ditto", "pfedme"),
    "pfedme_steps": ("pfedme",),
    "pfedme_beta": ("pfedme",),
}
"""Settings of local objectives, and which objectives use them."""


def load(
    file: Path | None,
    words: Iterable[str] = (),
    defaults: Mapping[str, Scalar] = MappingProxyType({}),
) -> Settings:
    """Return the defaults, changed by a TOML file, changed by ``key=value`` words.

    ``defaults`` (kebab-case) go before those of the schema.
    """
    values: dict[str, object] = dict(defaults)
    if file is not None:
        values |= read_toml(file)
    pairs = [split_word(word) for word in words]
    twice = sorted({key for key, _ in pairs if sum(key == other for other, _ in pairs) > 1})
    if twice:
        raise ConfigError(f"{twice[0]} is given twice; give each setting once")
    return Settings.parse(values | dict(pairs))


def from_run_config(run_config: Mapping[str, Scalar]) -> Settings:
    """Return the settings in Flower's run-config; equal configs share one parsed object."""
    return _from_items(tuple(sorted(run_config.items())))


@functools.lru_cache(maxsize=8)
def _from_items(items: tuple[tuple[str, Scalar], ...]) -> Settings:
    # Parsed once per process and not once per message.
    return Settings.parse(dict(items), source="run-config")


def _expand(path: str) -> str:
    return os.path.expanduser(path)


def _at_most(key: str, value: int, limit_key: str, limit: int) -> None:
    if value > limit:
        raise ValueError(f"{kebab_case(key)} = {value}: must be at most {limit_key} = {limit}")


def split_word(word: str) -> tuple[str, str]:
    """Return the key and the value of a word ``key=value``."""
    key, equals, value = word.partition("=")
    if not equals or not key:
        raise ConfigError(f"{word!r} is not a setting; write key=value, for example num-clients=20")
    return key.strip(), value.strip()


def read_toml(file: Path) -> dict[str, Any]:
    """Return a TOML file's content; a :class:`ConfigError` if it cannot be read."""
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read {file}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file} is not a TOML file: {error}") from None
