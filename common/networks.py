"""Networks: those of the papers, and small defaults for images and for rows of features.

Every network is a ``torch.nn.Module`` whose last linear layer is its last child, named ``output``:
what goes into it is the representation that probes compare, what comes out of it are the logits.
That of volumes is linear in every voxel. torch is imported by what builds a network, not by this
file: settings are checked against the names before anything slow is loaded.
"""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Final

from common.errors import ConfigError
from common.plugins import Table
from common.tasks.inputs import FEATURES, IMAGES, KINDS, VOLUMES, WINDOWS

if TYPE_CHECKING:
    from torch import Tensor, nn

Shape = tuple[int, ...]
Builder = Callable[[Shape, int], "nn.Module"]
"""(shape of one row, classes) -> network with PyTorch's default initialisation."""

_ANY_ROWS: Final = frozenset({FEATURES, WINDOWS, IMAGES})


@dataclass(frozen=True)
class Network:
    """A value of the setting ``model``."""

    build: Builder
    inputs: frozenset[str]
    """Kinds of rows it can take, of ``common.tasks.inputs.KINDS``; for volumes it gives a logit for
    every voxel and class, which is what their masks ask for."""
    auto_for: frozenset[str] = frozenset()
    """The kinds of rows for which ``model=auto`` is this one."""


def _dense(input_width: int, widths: tuple[int, ...], classes: int, dropout: float) -> "nn.Module":
    from torch import nn

    from common.dropout import Dropout

    layers: OrderedDict[str, nn.Module] = OrderedDict(flatten=nn.Flatten())
    for number, width in enumerate(widths, start=1):
        layers[f"hidden{number}"] = nn.Linear(input_width, width)
        layers[f"relu{number}"] = nn.ReLU()
        if dropout:
            layers[f"dropout{number}"] = Dropout(dropout)
        input_width = width
    layers["output"] = nn.Linear(input_width, classes)
    return nn.Sequential(layers)


def _convolutional(
    shape: Shape, channels: tuple[int, ...], kernel: int, dense: int, classes: int, padding: int = 0
) -> "nn.Module":
    """Convolutions, each with 2x2 max-pooling and ReLU, then one hidden dense layer.

    In this order, as ReLU passes over a quarter of the values; the other gives the same bits.
    """
    from torch import nn

    depth, height, width = shape
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    for number, wide in enumerate(channels, start=1):
        layers[f"conv{number}"] = nn.Conv2d(depth, wide, kernel, padding=padding)
        layers[f"pool{number}"] = nn.MaxPool2d(2)
        layers[f"relu{number}"] = nn.ReLU()
        height, width = ((side + 2 * padding - kernel + 1) // 2 for side in (height, width))
        if min(height, width) < 1:
            raise ConfigError(
                f"model: images of {shape[1]}x{shape[2]} pixels are too small for "
                f"{len(channels)} {kernel}x{kernel} convolutions; use model=lenet or model=mlp"
            )
        depth = wide
    layers["flatten"] = nn.Flatten()
    layers["hidden"] = nn.Linear(depth * height * width, dense)
    layers["relu"] = nn.ReLU()
    layers["output"] = nn.Linear(dense, classes)
    return nn.Sequential(layers)


def lenet(shape: Shape, classes: int) -> "nn.Module":
    """Two padded 3x3 convolutions of 16 and 32 channels; 8x8 digits leave 2x2."""
    return _convolutional(shape, (16, 32), 3, 64, classes, padding=1)


def mlp(shape: Shape, classes: int) -> "nn.Module":
    """128-64-32 with ReLU: FedSCCS section IV."""
    return _dense(prod(shape), (128, 64, 32), classes, dropout=0.0)


def fama_cnn(shape: Shape, classes: int) -> "nn.Module":
    """Two 5x5 convolutions, 2x2 max-pooling, two dense layers: Famá section IV.

    The paper states no widths; these are 32 and 64 channels and 128 hidden units.
    """
    return _convolutional(shape, (32, 64), 5, 128, classes)


def fama_cnn_small(shape: Shape, classes: int) -> "nn.Module":
    """The same with 10 and 20 channels and 50 hidden units."""
    return _convolutional(shape, (10, 20), 5, 50, classes)


def pereira_mlp(shape: Shape, classes: int) -> "nn.Module":
    """784-64-30-10 with dropout 0.5 after each hidden layer: Pereira section V, 52 500 parameters.

    Its appendix A says 29 034, which no network of these widths has.
    """
    return _dense(prod(shape), (64, 30), classes, dropout=0.5)


def pereira_cnn(shape: Shape, classes: int) -> "nn.Module":
    """Three valid 3x3 convolutions 32-64-64, dense 64: Pereira section V, 73 418 parameters."""
    return _convolutional(shape, (32, 64, 64), 3, 64, classes)


def resnet18(shape: Shape, classes: int) -> "nn.Module":
    """ResNet-18 with the 3x3 stem that 32x32 images need: 11 220 132 parameters for 100 classes."""
    from torchvision.models.resnet import BasicBlock, ResNet

    return _of_small_images(ResNet(BasicBlock, [2, 2, 2, 2], num_classes=classes), shape)


def resnet50(shape: Shape, classes: int) -> "nn.Module":
    """ResNet-50 with the same stem: 23 520 842 parameters for 10 classes. Of Pereira's Fig. 1."""
    from torchvision.models.resnet import Bottleneck, ResNet

    return _of_small_images(ResNet(Bottleneck, [3, 4, 6, 3], num_classes=classes), shape)


def _of_small_images(network: "nn.Module", shape: Shape) -> "nn.Module":
    """Give torchvision's ResNet a stem for 32x32 images, and its last layer our name."""
    from torch import nn

    network.conv1 = nn.Conv2d(shape[0], 64, 3, padding=1, bias=False)
    network.maxpool = nn.Identity()
    network.output = network.fc
    del network.fc
    network.forward = _resnet_forward.__get__(network)
    return network


def _resnet_forward(network: "nn.Module", images: "Tensor") -> "Tensor":
    """Torchvision's forward with its last layer under our name."""
    result = images
    for name, child in network.named_children():
        result = child(result.flatten(1) if name == "output" else result)
    return result


def unet3d(shape: Shape, classes: int) -> "nn.Module":
    """FLamby's baseline for IXITiny, with one logit per class: Elhussein & Gürsoy use it too."""
    from common.unet import UNet3d

    return UNet3d(shape[0], classes)


NETWORKS: Table[Network] = Table(
    "model",
    "coterie.models",
    {
        "lenet": Network(lenet, frozenset({IMAGES}), auto_for=frozenset({IMAGES})),
        "mlp": Network(mlp, _ANY_ROWS, auto_for=frozenset({FEATURES, WINDOWS})),
        "fama-cnn": Network(fama_cnn, frozenset({IMAGES})),
        "fama-cnn-small": Network(fama_cnn_small, frozenset({IMAGES})),
        "pereira-mlp": Network(pereira_mlp, _ANY_ROWS),
        "pereira-cnn": Network(pereira_cnn, frozenset({IMAGES})),
        "resnet18": Network(resnet18, frozenset({IMAGES})),
        "resnet50": Network(resnet50, frozenset({IMAGES})),
        "unet3d": Network(unet3d, frozenset({VOLUMES}), auto_for=frozenset({VOLUMES})),
    },
    of=Network,
    made_of=lambda factory: Network(factory, frozenset(KINDS)),
)
