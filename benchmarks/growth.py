"""Growth: what the clusterings take as the federation grows, ``python benchmarks/growth.py``.

Sites have label distributions of 10 classes, Dirichlet(0.3). Each clustering runs in a process of
its own, so that its peak memory can be read and one that takes too long can be stopped. Joules are
what CodeCarbon says the machine drew meanwhile, all of it or, where other programs ran, the part
that the clustering's processor time is of the machine's (Pereira et al., Fig. 7).
"""

import argparse
import multiprocessing
import resource
import time
from collections.abc import Callable
from multiprocessing.connection import Connection

import numpy as np

from common.power import CodeCarbonSource, own_share
from server_app.clustering import algorithms
from server_app.dissimilarity import LABEL_METRICS

Task = Callable[[np.ndarray, np.random.Generator], object]

MAX_CLUSTERS = 30
CLIENTS_PER_ROUND = 10


def k_medoids(shares: np.ndarray, rng: np.random.Generator) -> object:
    """Sweep 2 to 30 clusters by the silhouette of Euclidean distances, as strategy=similarity."""
    distances = LABEL_METRICS["euclidean"](shares)
    return algorithms.silhouette_sweep(distances, rng, max_clusters=MAX_CLUSTERS)


def k_medoids_fixed(shares: np.ndarray, rng: np.random.Generator) -> object:
    """Group into 10 clusters."""
    return algorithms.k_medoids(LABEL_METRICS["euclidean"](shares), 10, rng)


def simclust(shares: np.ndarray, rng: np.random.Generator) -> object:
    """Sweep 2 to 30 clusters by the silhouette in symmetrised KL, as strategy=simclust."""
    return algorithms.symmetric_kl_k_means_by_silhouette(shares, rng, MAX_CLUSTERS)


def simclust_fixed(shares: np.ndarray, rng: np.random.Generator) -> object:
    """Group into 10 clusters."""
    return algorithms.symmetric_kl_k_means(shares, 10, rng)


def repclust(shares: np.ndarray, rng: np.random.Generator) -> object:
    """Make n / 10 groups, as strategy=repclust clients-per-round=10 with num-clusters set."""
    return algorithms.repulsive(shares, len(shares) // CLIENTS_PER_ROUND, rng)


TASKS: dict[str, Task] = {
    "k-medoids, 10 clusters": k_medoids_fixed,
    f"k-medoids, best of 2..{MAX_CLUSTERS}": k_medoids,
    "SimClust, 10 clusters": simclust_fixed,
    f"SimClust, best of 2..{MAX_CLUSTERS}": simclust,
    f"RepClust, n / {CLIENTS_PER_ROUND} groups": repclust,
}


def measured(task: Task, n: int, limit: float, source: CodeCarbonSource) -> str:
    """Return seconds, joules and peak memory of one clustering of n sites, or that it stopped."""
    source.read()
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.Process(target=_measure, args=(task, n, theirs))
    process.start()
    theirs.close()
    if not ours.poll(limit):
        process.kill()
        process.join()
        return f"stopped after {limit:.0f} s"
    try:
        seconds, processor, megabytes = ours.recv()
    except EOFError:
        process.join()
        return f"ended with exit code {process.exitcode}"
    reading = source.read()
    process.join()
    joules = reading.joules * own_share(processor, reading.busy_seconds)
    return f"{seconds:.2f} s, {joules:.1f} J, {megabytes:.0f} MB"


def _measure(task: Task, n: int, connection: Connection) -> None:
    rng = np.random.default_rng(0)
    shares = rng.dirichlet(np.full(10, 0.3), size=n)
    began, processor = time.perf_counter(), time.process_time()
    task(shares, rng)
    spent = time.perf_counter() - began, time.process_time() - processor
    connection.send((*spent, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024))


def main() -> None:
    """Print the table, one row per clustering as it is done."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", type=int, nargs="+", default=[100, 1000, 10_000])
    parser.add_argument("--limit", type=float, default=600.0, help="seconds per clustering")
    arguments = parser.parse_args()
    source = CodeCarbonSource()
    print(f"joules {source.label}, {source.description}; without what importing takes\n")
    print("| clustering | " + " | ".join(f"n = {n}" for n in arguments.sizes) + " |")
    print("|---" * (1 + len(arguments.sizes)) + "|")
    for name, task in TASKS.items():
        cells = [measured(task, n, arguments.limit, source) for n in arguments.sizes]
        print(f"| {name} | " + " | ".join(cells) + " |", flush=True)
    source.close()


if __name__ == "__main__":
    main()
