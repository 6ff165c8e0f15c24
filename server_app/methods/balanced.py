"""Balanced cohorts: this project's own rule for who trains, by pooled labels."""

from collections.abc import Mapping

from common.config import Settings
from server_app.clustering.by_labels import LabelCounts, LabelInnerProducts
from server_app.clustering.grouping import Description
from server_app.methods.method import Card, Composition, Method, cohort_size
from server_app.selection.balanced import BalancedCohort, BalanceSettings


def label_products(settings: Settings) -> Description:
    """Return what gives inner products of label counts: histograms, or products of two sites."""
    return LabelInnerProducts() if settings.label_privacy == "two-party" else LabelCounts()


def balanced_cohort(settings: Settings) -> Method:
    """M clients whose pooled labels look like the federation's, nobody left behind."""
    asked = settings.of(BalanceSettings)
    return Method(
        select=BalancedCohort(
            cohort_size(settings),
            asked.balance_penalty,
            asked.balance_spread,
            asked.balance_target,
            asked.balance_weights,
        ),
        describe=label_products(settings),
    )


BALANCED_COHORT = Composition(
    balanced_cohort,
    card=Card(
        paper="Coterie",
        source=(
            "Coterie's own; the imbalance with balance-target=uniform is the QCID of Zhang et al., "
            "“Fed-CBS”, ICML 2023"
        ),
        trains="M whose pooled labels look like everybody's",
        sees=("label histograms, or with label-privacy=two-party their inner products; updates"),
        rule=(
            "D(S) is the squared distance between the pooled label shares of a cohort S and those "
            "of all sites. Each round the M available sites train that minimise D(S) + "
            "balance-penalty · mean over S of the turns a site had more than whoever had the "
            "fewest, found greedily and by swaps. Only sites with fewer than the fewest turns + "
            "balance-spread are chosen, if so many are there; so with everybody there turns never "
            "differ by more than that. A site that was away or joins late counts at least as many "
            "turns as the least of those that stayed. With balance-weights=labels the members' "
            "weights in the average, each at least 0.001, minimise the squared distance of their "
            "mixture of label shares to the federation's + 0.01 · that of the weights to the "
            "shares of rows."
        ),
        assumes=(
            "Labels are skewed, and what sets sites apart is their labels. A rare class that one "
            "site holds alone comes with that site's turn only."
        ),
        costs=(
            "Every site sends its label histogram once; with label-privacy=two-party every two "
            "sites play three exchanges together before round 1. Choosing takes milliseconds for "
            "100 sites."
        ),
        settings=(
            "clients-per-round",
            "balance-weights",
            "balance-target",
            "balance-penalty",
            "balance-spread",
            "label-privacy",
        ),
        example="clients-per-round=5",
    ),
    settings=(BalanceSettings,),
)


METHODS: Mapping[str, Composition] = {"balanced-cohort": BALANCED_COHORT}
