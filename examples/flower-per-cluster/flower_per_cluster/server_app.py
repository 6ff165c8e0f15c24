"""ServerApp: finds the kinds of sites, and has a strategy of Flower's train a model for each."""

from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAdam, FedAvg, Krum

from coterie.flower import PerCluster
from flower_per_cluster.task import Net

STRATEGIES = {"fedavg": FedAvg, "fedadam": FedAdam, "krum": Krum}

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train for some rounds, and say how well that went."""
    inner = STRATEGIES[context.run_config["strategy"]]
    strategy = PerCluster(inner, method="similarity", models_dir=context.run_config["models-dir"])
    arrays = ArrayRecord(Net().state_dict())
    result = strategy.start(grid, arrays, num_rounds=context.run_config["num-server-rounds"])
    last = result.evaluate_metrics_clientapp[context.run_config["num-server-rounds"]]
    for cluster in range(len(strategy.models)):
        sites = [site for site, mine in strategy.clusters.items() if mine == cluster]
        accuracy = last[f"cluster-{cluster}.eval_acc"]
        print(f"cluster {cluster}: {', '.join(sites)}, accuracy {accuracy:.3f}")
