"""Newcomers go where they fit, and drift counts who moved whatever the clusters are called."""

import itertools

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from server_app.clustering.clusters import Clusters
from server_app.clustering.placement import (
    matched,
    most_diverse,
    nearest_centre,
    nearest_medoid,
    share_moved,
)
from server_app.clustering.repulsion import diversity
from server_app.dissimilarity import LABEL_METRICS

TWO_KINDS = np.array([[0.9, 0.1, 0], [0.8, 0.2, 0], [0, 0.1, 0.9], [0, 0.2, 0.8]])
KINDS = Clusters(np.array([0, 0, 1, 1]))

labelings = st.integers(1, 7).flatmap(
    lambda n: st.tuples(*2 * [st.lists(st.integers(0, 3), min_size=n, max_size=n)])
)


def test_newcomer_joins_its_own_kind():
    for place in (nearest_centre, nearest_medoid(LABEL_METRICS["euclidean"])):
        assert place(TWO_KINDS, KINDS, np.array([0.85, 0.15, 0])) == 0
        assert place(TWO_KINDS, KINDS, np.array([0, 0.15, 0.85])) == 1


def test_medoid_counts_and_not_the_centre():
    points = np.array([[1.0, 0], [0.9, 0.1], [0.0, 1], [0.5, 0.5]])
    clusters = Clusters(np.array([0, 0, 0, 1]))
    # the mean of cluster 0 is (0.63, 0.37) and its medoid (0.9, 0.1)
    place = nearest_medoid(LABEL_METRICS["euclidean"])
    assert place(points, clusters, np.array([0.66, 0.34])) == 1
    assert nearest_centre(points, clusters, np.array([0.66, 0.34])) == 0


def test_most_diverse_puts_a_newcomer_where_its_classes_are_missing():
    newcomer = np.array([0, 0.1, 0.9])
    assert most_diverse(TWO_KINDS, KINDS, newcomer) == 0
    joined = np.vstack([TWO_KINDS, newcomer])
    both = [diversity(joined, np.array([0, 0, 1, 1, cluster])) for cluster in (0, 1)]
    assert both[0] > both[1]


@given(labelings)
def test_share_moved_is_the_least_over_all_ways_to_name_the_clusters(pair):
    before, after = (Clusters.from_labels(np.array(labels)) for labels in pair)
    names = range(max(before.k, after.k))
    least = min(
        np.mean(np.array(naming)[after.labels] != before.labels)
        for naming in itertools.permutations(names)
    )
    assert np.isclose(share_moved(before, after), least)


@given(labelings)
def test_matching_keeps_the_partition_and_is_settled(pair):
    before, after = (Clusters.from_labels(np.array(labels)) for labels in pair)
    named = matched(before, after)
    same = named.labels[:, None] == named.labels
    assert np.array_equal(same, after.labels[:, None] == after.labels)
    assert matched(before, before) == before
    if before.k == after.k:
        assert np.isclose(np.mean(named.labels != before.labels), share_moved(before, after))


def test_share_moved_by_hand():
    before = Clusters(np.array([0, 0, 0, 1, 1, 1]))
    after = Clusters(np.array([1, 1, 0, 0, 0, 0]))
    assert np.isclose(share_moved(before, after), 1 / 6)
    assert matched(before, after).labels.tolist() == [0, 0, 1, 1, 1, 1]
