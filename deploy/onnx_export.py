"""ONNX export: a run's model for programs that know neither Coterie nor PyTorch."""

import shutil
from importlib.util import find_spec
from pathlib import Path

import torch

from common.errors import ConfigError
from common.tasks.inputs import TOKENS
from deploy.predictions import ModelInUse
from server_app.record.run_folder import PREPROCESSING
from server_app.report.model_card import CARD

__all__ = ["export_model"]


def export_model(run: Path, using: ModelInUse, target: Path) -> Path:
    """Write ``model-<k>.onnx``, how rows are prepared for it, and the run's model card.

    The network takes prepared float32 ``rows`` (n, *input shape), any n, and gives ``logits``
    (n, classes).

    Returns:
        The path of the network.

    Raises:
        ConfigError: a package is missing.
    """
    for package in ("onnx", "onnxscript"):
        if find_spec(package) is None:
            raise ConfigError(f"an export needs {package}: pip install 'coterie[export]'")
    # Where the first gradient of a process comes after an export, it starts threads, and no worker
    # that is forked then can train; where it comes before, it starts none.
    torch.autograd.backward(torch.ones(1, requires_grad=True).sum())
    inputs = using.preprocessing.inputs
    kind = torch.int64 if inputs.kind == TOKENS else torch.float32
    example = torch.zeros(2, *inputs.shape, dtype=kind)
    program = torch.onnx.export(
        using.network,
        (example,),
        input_names=["rows"],
        output_names=["logits"],
        dynamic_shapes=({0: torch.export.Dim.DYNAMIC},),
        dynamo=True,
        verbose=False,
    )
    assert program is not None
    for node in program.model.graph:
        node.metadata_props.clear()  # stack traces with this machine's paths
    target.mkdir(parents=True, exist_ok=True)
    network = target / f"model-{using.number}.onnx"
    program.save(network, external_data=False)
    preprocessing = target / Path(PREPROCESSING).name
    preprocessing.write_text(using.preprocessing.to_json(), encoding="utf-8")
    card = run / CARD
    if card.exists():
        shutil.copy(card, target)
    return network
