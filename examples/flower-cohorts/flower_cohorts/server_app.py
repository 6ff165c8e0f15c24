"""ServerApp: has SimClust choose two sites for every round of a strategy of Flower's."""

from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAdam, FedAvg, Krum

from coterie.flower import Cohorts
from flower_cohorts.task import Net

STRATEGIES = {"fedavg": FedAvg, "fedadam": FedAdam, "krum": Krum}

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train for some rounds, and say how well that went."""
    inner = STRATEGIES[context.run_config["strategy"]]
    strategy = Cohorts(inner(), method="simclust", clients_per_round=2)
    arrays = ArrayRecord(Net().state_dict())
    result = strategy.start(grid, arrays, num_rounds=context.run_config["num-server-rounds"])
    for number, sites in strategy.cohorts.items():
        members = ", ".join(f"{site} of cluster {strategy.clusters[site]}" for site in sites)
        accuracy = result.evaluate_metrics_clientapp[number]["eval_acc"]
        print(f"round {number}: {members} trained, accuracy {accuracy:.3f}")
