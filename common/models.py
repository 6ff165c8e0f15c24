"""The networks of the papers, and one small default for images and one for rows of features.

Every network is a ``torch.nn.Module`` whose last linear layer is its last child, named ``output``:
what goes into it is the representation that probes compare, what comes out of it are the logits.
That of volumes is linear in every voxel.
"""

from collections import OrderedDict
from collections.abc import Callable
from math import prod

import numpy as np
import torch
from torch import Tensor, nn

from common.config import Settings
from common.errors import ConfigError
from common.messages import Parameters
from common.seeds import derive_seed
from common.unet import UNet3d

Shape = tuple[int, ...]
Builder = Callable[[Shape, int], nn.Module]


class Dropout(nn.Module):
    """Sets each unit to 0 with probability ``p`` in training and scales the others by 1/(1 - p).

    As ``torch.nn.Dropout``, but from 15 random bits per unit instead of a float of 64, which is
    faster on a CPU; ``p`` is met to 2**-16. Steps written by hand draw the same bits.
    """

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p

    def forward(self, values: Tensor) -> Tensor:
        """Return the values, some of them dropped in training mode."""
        if not self.training:
            return values
        kept = dropout_bits(values.numel(), values.device) >= dropout_threshold(self.p)
        return values * kept.view(values.shape).to(values.dtype).mul_(1 / (1 - self.p))


def dropout_bits(
    count: int, device: torch.device | str = "cpu", generator: torch.Generator | None = None
) -> Tensor:
    """Return 15 random bits for each unit, (count,) int16; torch's own generator by default."""
    words = torch.empty(-(-count // 4), dtype=torch.int64, device=device)
    # 63 bits a word: torch draws the 64th at three times the cost, so each quarter gives up its own
    words.random_(generator=generator)
    return words.view(torch.int16)[:count].bitwise_and_(2**15 - 1)


def dropout_threshold(p: float) -> int:
    """Return the least bits with which a unit is kept if it is dropped with probability ``p``."""
    return min(2**15 - round((1 - p) * 2**15), 2**15 - 1)


def _dense(input_width: int, widths: tuple[int, ...], classes: int, dropout: float) -> nn.Module:
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
) -> nn.Module:
    """Convolutions, each with 2x2 max-pooling and ReLU, then one hidden dense layer.

    In this order, as ReLU passes over a quarter of the values; the other gives the same bits.
    """
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


def _lenet(shape: Shape, classes: int) -> nn.Module:
    """Two padded 3x3 convolutions of 16 and 32 channels; 8x8 digits leave 2x2."""
    return _convolutional(shape, (16, 32), 3, 64, classes, padding=1)


def _mlp(shape: Shape, classes: int) -> nn.Module:
    """128-64-32 with ReLU: FedSCCS section IV."""
    return _dense(prod(shape), (128, 64, 32), classes, dropout=0.0)


def _fama_cnn(shape: Shape, classes: int) -> nn.Module:
    """Two 5x5 convolutions, 2x2 max-pooling, two dense layers: Famá section IV.

    The paper states no widths; these are 32 and 64 channels and 128 hidden units.
    """
    return _convolutional(shape, (32, 64), 5, 128, classes)


def _fama_cnn_small(shape: Shape, classes: int) -> nn.Module:
    """The same with 10 and 20 channels and 50 hidden units."""
    return _convolutional(shape, (10, 20), 5, 50, classes)


def _pereira_mlp(shape: Shape, classes: int) -> nn.Module:
    """784-64-30-10 with dropout 0.5 after each hidden layer: Pereira section V, 52 500 parameters.

    Its appendix A says 29 034, which no network of these widths has.
    """
    return _dense(prod(shape), (64, 30), classes, dropout=0.5)


def _pereira_cnn(shape: Shape, classes: int) -> nn.Module:
    """Three valid 3x3 convolutions 32-64-64, dense 64: Pereira section V, 73 418 parameters."""
    return _convolutional(shape, (32, 64, 64), 3, 64, classes)


def _resnet18(shape: Shape, classes: int) -> nn.Module:
    """ResNet-18 with the 3x3 stem that 32x32 images need: 11 220 132 parameters for 100 classes."""
    # torchvision is slow to import and only this network needs it.
    from torchvision.models.resnet import BasicBlock, ResNet

    network: nn.Module = ResNet(BasicBlock, [2, 2, 2, 2], num_classes=classes)
    network.conv1 = nn.Conv2d(shape[0], 64, 3, padding=1, bias=False)
    network.maxpool = nn.Identity()
    network.output = network.fc
    del network.fc
    network.forward = _resnet_forward.__get__(network)
    return network


def _resnet_forward(network: nn.Module, images: Tensor) -> Tensor:
    """Torchvision's forward with its last layer under our name."""
    result = images
    for name, child in network.named_children():
        result = child(result.flatten(1) if name == "output" else result)
    return result


def _unet3d(shape: Shape, classes: int) -> nn.Module:
    """FLamby's baseline for IXITiny, with one logit per class: Elhussein & Gürsoy use it too."""
    return UNet3d(shape[0], classes)


_BUILDERS: dict[str, Builder] = {
    "lenet": _lenet,
    "mlp": _mlp,
    "fama-cnn": _fama_cnn,
    "fama-cnn-small": _fama_cnn_small,
    "pereira-mlp": _pereira_mlp,
    "pereira-cnn": _pereira_cnn,
    "resnet18": _resnet18,
    "unet3d": _unet3d,
}
_NEEDS_IMAGES = {"lenet", "fama-cnn", "fama-cnn-small", "pereira-cnn", "resnet18"}


def build(name: str, input_shape: Shape, num_classes: int) -> nn.Module:
    """Return a network with PyTorch's default initialisation from its global generator.

    Args:
        name: a value of the setting ``model``; ``auto`` is lenet for images, unet3d for volumes,
            mlp for feature rows.
        input_shape: of one row: (channels, height, width), with a depth before, or (features,).
        num_classes: number of logits; for volumes, in every voxel.
    """
    is_image, is_volume = len(input_shape) == 3, len(input_shape) == 4
    if name == "auto":
        name = "lenet" if is_image else "unet3d" if is_volume else "mlp"
    if is_volume != (name == "unet3d"):
        raise ConfigError(
            f"model = {name!r}: rows have shape {input_shape}; volumes (channels, depth, height, "
            "width) need model=unet3d, and only they can use it"
        )
    if name in _NEEDS_IMAGES and not is_image:
        raise ConfigError(
            f"model = {name!r} needs images, but a row has shape {input_shape}; use model=mlp"
        )
    return _BUILDERS[name](input_shape, num_classes)


def blank(name: str, input_shape: Shape, num_classes: int) -> nn.Module:
    """Return :func:`build`'s network for parameters to be loaded into; nobody's draws change."""
    with torch.random.fork_rng(devices=[]):
        return build(name, input_shape, num_classes)


def initial_parameters(
    settings: Settings, input_shape: Shape, num_classes: int
) -> dict[str, np.ndarray]:
    """Return the first global model, decided by the run's seed alone."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive_seed(settings.seed, "initial model"))
        return parameters_of(build(settings.model, input_shape, num_classes))


def parameters_of(network: nn.Module) -> dict[str, np.ndarray]:
    """Return copies of a network's parameters and buffers, in the order of its state dict."""
    state = network.state_dict()
    return {name: value.detach().cpu().numpy().copy() for name, value in state.items()}


def load_parameters(network: nn.Module, parameters: Parameters) -> None:
    """Copy parameters and buffers into a network; names and shapes must match."""
    state = network.state_dict()
    if state.keys() != parameters.keys():
        raise ConfigError(
            f"the model received has arrays {sorted(parameters)}, this site's network has "
            f"{sorted(state)}: server and site must run the same version and model setting"
        )
    with torch.no_grad():
        for name, value in state.items():
            # copy() because a decoded array is a read-only view, which torch warns about
            value.copy_(torch.from_numpy(parameters[name].copy()))


def last_linear(network: nn.Module) -> nn.Linear | nn.Conv3d:
    """Return the layer whose input is the representation and whose output are the logits."""
    layer = network.get_submodule("output")
    assert isinstance(layer, nn.Linear | nn.Conv3d)
    return layer
