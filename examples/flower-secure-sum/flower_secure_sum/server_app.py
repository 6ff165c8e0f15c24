"""ServerApp: has a strategy of Flower's work on means of updates."""

from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAdam, FedAvg, Krum

from coterie.flower import Cohorts
from flower_secure_sum.task import Net

STRATEGIES = {"fedavg": FedAvg, "fedadam": FedAdam, "krum": Krum}

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train for some rounds, and say how well that went."""
    inner = STRATEGIES[context.run_config["strategy"]]
    strategy = Cohorts(inner(), method="fedavg", secagg=True, summed_metrics=["train_loss"])
    arrays = ArrayRecord(Net().state_dict())
    result = strategy.start(grid, arrays, num_rounds=context.run_config["num-server-rounds"])
    for number, metrics in result.evaluate_metrics_clientapp.items():
        loss = result.train_metrics_clientapp[number]["train_loss"]
        print(f"round {number}: loss {loss:.3f}, accuracy {metrics['eval_acc']:.3f}")
