"""Method cards: what a reader wants to know of each method before choosing one.

``coterie methods`` prints these and the pages in ``docs/methods/`` are made from them, so that the
catalogue and the documentation cannot differ; a test holds them against ``METHODS``.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields

from common.errors import ConfigError

__all__ = ["CARDS", "Card"]


@dataclass(frozen=True)
class Card:
    """A method in words; every field is one or a few sentences or a short phrase."""

    paper: str
    """Short: authors, year or section."""
    source: str
    """Long: authors, title, section, equation or algorithm."""
    trains: str
    """Who trains in a round, as a phrase."""
    sees: str
    """What the server sees of single sites beyond sizes and evaluations, as a phrase."""
    rule: str
    """How it works."""
    assumes: str
    """When it can be expected to help."""
    costs: str
    """Beyond the training of a cohort and everybody's evaluation."""
    settings: tuple[str, ...]
    """Settings that it reads, beyond those of every run."""
    example: str
    """Words after ``coterie simulate strategy=<name>``."""

    def __post_init__(self) -> None:
        """Refuse an empty text: a page with a hole tells less than none."""
        empty = [field.name for field in fields(self) if not getattr(self, field.name)]
        if empty and empty != ["settings"]:
            raise ConfigError(f"a method's card has no {empty[0]}: say it in a phrase")


_PEREIRA = (
    "Pereira, Famá, Kalalas, Dini, “Energy-Efficient Federated Learning for AIoT using Clustering "
    "Methods”"
)
_FRABONI = (
    "Fraboni, Vidal, Kameni, Lorenzi, “Clustered Sampling: Low-Variance and Improved "
    "Representativity for Clients Selection in Federated Learning”, ICML 2021"
)
_LATE = "A site that joins late is asked for its histogram too and"
_LABELS = "Every site sends its label histogram once, a few numbers."
_TALASSO = (
    "Talasso et al., “FedSCCS: Hierarchical Clustering with Multiple Models for Federated Learning”"
)
_FIRST = "Everybody trains one model up to round cluster-at-round;"
_THEN = (
    "That round is averaged within the clusters already, and each cluster has a model of its own "
    "from then on."
)
_UNTIL = "Everybody's training up to the clustering."
_CLUSTERED = (
    "num-clusters",
    "max-clusters",
    "cluster-at-round",
    "recluster-every",
    "selection",
    "clients-per-round",
)

CARDS: Mapping[str, Card] = {
    "random": Card(
        paper="McMahan et al. 2017",
        source=(
            "McMahan, Moore, Ramage, Hampson, Agüera y Arcas, “Communication-Efficient Learning of "
            "Deep Networks from Decentralized Data”, AISTATS 2017, Algorithm 1"
        ),
        trains="M drawn uniformly; all if M = 0",
        sees="updates",
        rule="M clients are drawn uniformly without replacement; rows weigh their models.",
        assumes="Nothing. It is what every other rule has to beat.",
        costs="Nothing.",
        settings=("clients-per-round",),
        example="clients-per-round=5",
    ),
    "similarity": Card(
        paper="Famá et al.",
        source=(
            "Famá, Kalalas, Lagen, Dini, “Measuring Data Similarity for Efficient Federated "
            "Learning: A Feasibility Study”, Algorithm 1 and eq. 3-11"
        ),
        trains="one of every cluster",
        sees="label histograms, updates",
        rule=(
            "k-medoids on a dissimilarity of label distributions, before round 1; the number of "
            "clusters is the one of the largest mean silhouette. One uniformly drawn client of "
            f"every cluster trains. {_LATE} joins the cluster of the nearest medoid."
        ),
        assumes=(
            "Labels are skewed in kinds: clients of a kind can stand for each other. Where all "
            "mixtures differ, the silhouette is flat and the number of clusters says little."
        ),
        costs=f"{_LABELS} The sweep over the number of clusters grows faster than n³.",
        settings=(
            "metric",
            "num-clusters",
            "max-clusters",
            "clients-per-round",
            "routing",
            "recluster-every",
        ),
        example="metric=wasserstein dirichlet-alpha=0.1",
    ),
    "simclust": Card(
        paper="Pereira et al., III-A",
        source=f"{_PEREIRA}, section III-A",
        trains="M spread over the clusters",
        sees="label histograms, updates",
        rule=(
            "k-means on label distributions, with the symmetrised Kullback-Leibler divergence for "
            "distance and arithmetic means for centres. With at least as many clusters as clients "
            "per round, one client of each of M random clusters trains; with fewer, ceil(M/G) of "
            f"each. {_LATE} joins the nearest centre."
        ),
        assumes="Clients come in kinds that a round should represent.",
        costs=_LABELS,
        settings=(
            "clients-per-round",
            "num-clusters",
            "max-clusters",
            "normalise",
            "routing",
            "recluster-every",
        ),
        example="clients-per-round=5 num-clusters=5",
    ),
    "repclust": Card(
        paper="Pereira et al., III-B",
        source=f"{_PEREIRA}, section III-B, eq. 3 and Algorithm 1",
        trains="one whole group, or as many as hold M",
        sees="label histograms, updates",
        rule=(
            "Groups of equal size whose members differ as much as possible while the groups' means "
            "differ as little as possible: swaps raise J = diversity inside less that between. "
            "Each group then resembles the federation, and whole groups train. The number of "
            f"groups, if not set, is n / M. {_LATE} joins the group that leaves J highest."
        ),
        assumes="Labels are skewed, and a round's cohort should cover all of them.",
        costs=_LABELS,
        settings=("clients-per-round", "num-clusters", "normalise", "routing", "recluster-every"),
        example="clients-per-round=5",
    ),
    "power-of-choice": Card(
        paper="Cho et al. 2022",
        source=(
            "Cho, Wang, Joshi, “Towards Understanding Biased Client Selection in Federated "
            "Learning”, AISTATS 2022, section 3.1"
        ),
        trains="the M of d candidates with the largest loss",
        sees="losses of d candidates, updates",
        rule=(
            "d candidates are drawn without replacement with odds n_i/n; they are sent the model "
            "and answer with its loss on their rows; the M with the largest loss train."
        ),
        assumes="Where the loss is large there is most to learn. Noisy labels break that.",
        costs="In every round d models down, d losses up, and a pass over the candidates' rows.",
        settings=("clients-per-round", "power-of-choice-candidates"),
        example="clients-per-round=5 power-of-choice-candidates=10",
    ),
    "fedcor": Card(
        paper="Tang et al. 2022",
        source=(
            "Tang, Ning, Wang, Sun, Wang, Li, Chen, “FedCor: Correlation-Based Active Client "
            "Selection Strategy for Heterogeneous Federated Learning”, CVPR 2022, sections 4 and 5"
        ),
        trains="M that a Gaussian process expects to lower all losses",
        sees="losses of all sites now and then, updates",
        rule=(
            "A Gaussian process describes how the clients' losses change together. Client after "
            "client, the one is taken whose training lowers the weighted loss most given those "
            "before it; it then counts 0.9 times as much until the process is trained again."
        ),
        assumes=(
            "Losses of like clients fall together and go on doing so between two trainings of the "
            "process."
        ),
        costs=(
            "In the warm-up and every fedcor-interval rounds all sites are sent the model and "
            "measure its loss; in the latter M of them also train a copy, whose loss all measure. "
            "The server's own work is part of the round's seconds."
        ),
        settings=("clients-per-round", "fedcor-warmup", "fedcor-interval"),
        example="clients-per-round=5 fedcor-warmup=5 fedcor-interval=5",
    ),
    "clustered-sampling-size": Card(
        paper="Fraboni et al. 2021, alg. 1",
        source=f"{_FRABONI}, Algorithm 1",
        trains="one of each of M urns filled by size",
        sees="updates",
        rule=(
            "Each client's share of the rows, times M, is poured into M urns, the largest first. "
            "One client is drawn from each urn and counts 1/M; one drawn twice trains once and "
            "counts twice. The average is unbiased: its mean over draws is that of full "
            "participation."
        ),
        assumes="Sizes differ; with equal ones it comes close to uniform draws.",
        costs="Nothing.",
        settings=("clients-per-round",),
        example="clients-per-round=5",
    ),
    "clustered-sampling-similarity": Card(
        paper="Fraboni et al. 2021, alg. 2",
        source=f"{_FRABONI}, Algorithm 2",
        trains="one of each of M urns filled with like updates",
        sees="the last update of each site",
        rule=(
            "Angles between the clients' last updates (zero before the first) are linked by Ward's "
            "method and cut into the largest groups that fit into an urn; the M heaviest become "
            "urns, the others fill the room left. Draws and weights are as by size: unbiased."
        ),
        assumes="Clients whose updates point the same way can stand for each other.",
        costs="The server keeps one update per site in memory and links them in every round.",
        settings=("clients-per-round",),
        example="clients-per-round=5",
    ),
    "delta": Card(
        paper="Wang et al. 2023",
        source=(
            "Wang, Lin, Xu, Lin, Sun, “DELTA: Diverse Client Sampling for Fasting Federated "
            "Learning”, NeurIPS 2023"
        ),
        trains="M, sooner those whose update differs from the mean",
        sees="the last update of each site",
        rule=(
            "Odds P_i proportional to b (n_i/n) |g_i - g| + (1-b) sqrt(n_i/n) with b = 0.5; M "
            "draws without replacement, weighted n_i/P_i and normalised, so not exactly unbiased. "
            "delta-mode=practical uses the updates of those who trained; full has everybody train "
            "a copy first."
        ),
        assumes="Updates that differ carry what the mean does not know yet.",
        costs=(
            "Practical: one update per site in the server's memory. Full: everybody trains and "
            "sends an update in every round, before the cohort does."
        ),
        settings=("clients-per-round", "delta-mode"),
        example="clients-per-round=5 delta-mode=practical",
    ),
    "fedavg": Card(
        paper="McMahan et al. 2017",
        source=(
            "McMahan, Moore, Ramage, Hampson, Agüera y Arcas, “Communication-Efficient Learning of "
            "Deep Networks from Decentralized Data”, AISTATS 2017, Algorithm 1 with C = 1"
        ),
        trains="everybody",
        sees="updates",
        rule="Every connected site trains in every round; rows weigh their models.",
        assumes="One model can serve all sites, and everybody's update can be paid for.",
        costs="Nothing; the uplink share of the others is measured against it.",
        settings=(),
        example="num-clients=10",
    ),
    "fedsccs": Card(
        paper="Talasso et al.",
        source=f"{_TALASSO}, Algorithm 1 and section III",
        trains="everybody, then all, one or the worst half of every cluster",
        sees="models of single sites, their update",
        rule=(
            f"{_FIRST} the models that come back run on probe rows, and Ward's linkage groups the "
            f"columns of their linear CKA matrix. {_THEN}"
        ),
        assumes=(
            "Sites come in kinds that one model cannot serve, and a few rounds of common training "
            "show which."
        ),
        costs=f"{_UNTIL} On the server one forward pass of the probe per site.",
        settings=(*_CLUSTERED, "cka-layer", "cka-probe", "cka-probe-size", "probe-file"),
        example="num-clusters=3 cluster-at-round=5 selection=worst",
    ),
    "wc": Card(
        paper="Talasso et al., WC",
        source=f"{_TALASSO}, section IV, baseline WC",
        trains="everybody, then all, one or the worst half of every cluster",
        sees="models of single sites, their update",
        rule=f"{_FIRST} Ward's linkage groups them by the cosine of their last layers. {_THEN}",
        assumes="Sites of a kind move the last layer in one direction.",
        costs=_UNTIL,
        settings=_CLUSTERED,
        example="num-clusters=3 cluster-at-round=5",
    ),
    "wc-updates": Card(
        paper="Sattler et al. 2020, cut once",
        source=(
            "Sattler, Müller, Samek, “Clustered Federated Learning: Model-Agnostic Distributed "
            "Multitask Optimization under Privacy Constraints”, IEEE TNNLS 2021, for the cosine of "
            f"updates; {_TALASSO}, for the rest"
        ),
        trains="everybody, then all, one or the worst half of every cluster",
        sees="models of single sites, their update",
        rule=(
            f"{_FIRST} Ward's linkage groups them by the cosine of what training added to all "
            f"parameters. CFL itself splits in two again and again. {_THEN}"
        ),
        assumes="Sites of a kind pull the common model in one direction.",
        costs=f"{_UNTIL} The server holds all updates of a round at once.",
        settings=_CLUSTERED,
        example="num-clusters=3 cluster-at-round=5",
    ),
    "kcenter": Card(
        paper="Talasso et al., KCenter",
        source=f"{_TALASSO}, section IV, baseline KCenter",
        trains="everybody, then all, one or the worst half of every cluster",
        sees="models of single sites, their update",
        rule=(
            f"{_FIRST} greedy k-center groups their last layers by Euclidean distance, the first "
            f"centre drawn at random. {_THEN}"
        ),
        assumes="Sites differ in how far their last layers are apart; outliers get clusters.",
        costs=_UNTIL,
        settings=tuple(name for name in _CLUSTERED if name != "max-clusters"),
        example="num-clusters=3 cluster-at-round=5",
    ),
    "random-clusters": Card(
        paper="Talasso et al., RC",
        source=f"{_TALASSO}, section IV, baseline RC",
        trains="everybody, then all, one or the worst half of every cluster",
        sees="models of single sites, their update",
        rule=f"{_FIRST} sites are dealt to clusters at random, none empty. {_THEN}",
        assumes="Nothing: it shows what several models bring without any similarity.",
        costs=_UNTIL,
        settings=tuple(name for name in _CLUSTERED if name != "max-clusters"),
        example="num-clusters=3 cluster-at-round=5",
    ),
    "flis": Card(
        paper="Morafah et al.",
        source=(
            "Morafah, Vahidian, Wang, Lin, “FLIS: Clustered Federated Learning via Inference "
            "Similarity for Non-IID Data Distribution”"
        ),
        trains="everybody in round 1, then one of every group",
        sees="models of single sites, their update",
        rule=(
            "Everybody trains in round 1. In every round the models that come back predict the "
            "classes of probe rows; groups merge (average linkage) while the share of equal "
            "predictions is at least flis-threshold. Each group has a model, and one site of each "
            "trains next. A site that did not train is described by the last model it returned."
        ),
        assumes="Sites of a kind decide alike on the probe: a public file shows more than noise.",
        costs="In round 1 everybody's training; per round a forward pass of the probe per update.",
        settings=(
            "flis-threshold",
            "recluster-every",
            "selection",
            "clients-per-round",
            "cka-probe",
            "cka-probe-size",
            "probe-file",
        ),
        example="flis-threshold=0.7",
    ),
    "ot-groups": Card(
        paper="Elhussein & Gürsoy",
        source=(
            "Elhussein, Gürsoy, “A Universal Metric of Dataset Similarity for Cross-silo Federated "
            "Learning”"
        ),
        trains="everybody, then all, one or the worst half of every group",
        sees="representations of single rows, updates",
        rule=(
            "Everybody trains one model in round 1. It then runs over every site's training rows, "
            "and what comes out (representations: the inputs of its last layer) goes to the "
            "server. For each pair, optimal transport per class says what it costs to carry one "
            "site's rows onto the other's, 0 to 1 ([the OT cost](../ot-cost.md)). Groups merge "
            "(average linkage) while the mean cost between them is below ot-detrimental; each has "
            "a model of its own from round 2 on. A site that joins late is compared with all and "
            "joins the group of least mean cost."
        ),
        assumes=(
            "Sites differ in kinds, and some are better off apart. Each needs min-rows rows of a "
            "class that another site has too; under 50 the cost is too high, and its null says so. "
            "[The precheck](../precheck.md) is this method with one round: costs and advice, "
            "before anybody decides to train."
        ),
        costs=(
            "Everybody's training in round 1. Then one question: each site sends d numbers for "
            "each of its rows, at most 900 of a class, where d is the width of the last hidden "
            "layer. Whoever holds these knows much of the rows, so a site must opt in: it lists "
            "representations in its releases."
        ),
        settings=(
            "ot-variant",
            "ot-feature-weight",
            "ot-label-weight",
            "ot-beneficial",
            "ot-detrimental",
            "min-rows",
            "num-clusters",
            "selection",
            "clients-per-round",
        ),
        example="num-server-rounds=10",
    ),
}
