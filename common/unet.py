"""UNet in three dimensions that FLamby trains on IXITiny: a logit for every voxel of a volume."""

import torch
from torch import Tensor, nn
from torch.nn import functional

FIRST_CHANNELS = 8
"""Of the finest of three resolutions; FLamby's baseline."""


class UNet3d(nn.Module):
    """Three resolutions, 3x3x3 convolutions with batch norm and PReLU, trilinear upsampling.

    Ronneberger et al. 2015, in three dimensions as by Çiçek et al. 2016; sizes as FLamby's
    baseline. Volumes need at least 4 voxels a side, so that the coarsest resolution has one.
    """

    def __init__(self, channels: int, classes: int) -> None:
        super().__init__()
        wide = FIRST_CHANNELS
        self.down1 = _block(channels, wide, 2 * wide)
        self.down2 = _block(2 * wide, 2 * wide, 4 * wide)
        self.bottom = _block(4 * wide, 4 * wide, 8 * wide)
        self.up2 = _block(12 * wide, 4 * wide, 4 * wide)
        self.up1 = _block(6 * wide, 2 * wide, 2 * wide)
        self.output = nn.Conv3d(2 * wide, classes, 1)

    def forward(self, volumes: Tensor) -> Tensor:
        """Return logits (n, classes, depth, height, width) of volumes (n, channels, ...)."""
        fine = self.down1(volumes)
        middle = self.down2(functional.max_pool3d(fine, 2))
        coarse = self.bottom(functional.max_pool3d(middle, 2))
        middle = self.up2(_beside(middle, coarse))
        logits: Tensor = self.output(self.up1(_beside(fine, middle)))
        return logits


def _block(channels: int, first: int, second: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for before, after in ((channels, first), (first, second)):
        convolution = nn.Conv3d(before, after, 3, padding=1, bias=False)
        layers += [convolution, nn.BatchNorm3d(after), nn.PReLU()]
    return nn.Sequential(*layers)


def _beside(skipped: Tensor, coarse: Tensor) -> Tensor:
    """Return a finer level's channels, then those of a coarser one at the finer one's size."""
    size = skipped.shape[2:]
    raised = functional.interpolate(coarse, size, mode="trilinear", align_corners=False)
    return torch.cat([skipped, raised], dim=1)
