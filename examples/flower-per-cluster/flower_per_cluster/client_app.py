"""ClientApp: trains and evaluates on a site's own rows."""

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch.utils.data import TensorDataset

from coterie.flower import label_histogram_mod
from flower_per_cluster.task import NUM_CLASSES, Net, load_data
from flower_per_cluster.task import test as test_fn
from flower_per_cluster.task import train as train_fn


def labels_of(context: Context) -> list[int]:
    """Return the class of every training row of a site."""
    rows, _ = _data(context)
    return rows.tensors[1].tolist()


app = ClientApp(mods=[label_histogram_mod(labels_of, num_classes=NUM_CLASSES)])


@app.train()
def train(msg: Message, context: Context) -> Message:
    """Train the model on the site's rows."""
    net = Net()
    net.load_state_dict(msg.content["arrays"].to_torch_state_dict())
    rows, _ = _data(context)
    config = context.run_config
    loss = train_fn(
        net, rows, config["local-epochs"], config["learning-rate"], config["batch-size"]
    )
    content = RecordDict(
        {
            "arrays": ArrayRecord(net.state_dict()),
            "metrics": MetricRecord({"train_loss": loss, "num-examples": len(rows)}),
        }
    )
    return Message(content=content, reply_to=msg)


@app.evaluate()
def evaluate(msg: Message, context: Context) -> Message:
    """Evaluate the model on the site's held-out rows."""
    net = Net()
    net.load_state_dict(msg.content["arrays"].to_torch_state_dict())
    _, rows = _data(context)
    loss, accuracy = test_fn(net, rows)
    metrics = {"eval_loss": loss, "eval_acc": accuracy, "num-examples": len(rows)}
    return Message(content=RecordDict({"metrics": MetricRecord(metrics)}), reply_to=msg)


def _data(context: Context) -> tuple[TensorDataset, TensorDataset]:
    return load_data(context.node_config["partition-id"], context.node_config["num-partitions"])
