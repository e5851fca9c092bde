"""Residual networks (He et al. 2015) for the examples, short enough to read; small ones train on a CPU."""

from __future__ import annotations

import torch
from torch import nn


def _normed(before: int, after: int, kernel: int, stride: int = 1) -> nn.Sequential:
    convolution = nn.Conv2d(before, after, kernel, stride, padding=kernel // 2, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(after))


class Block(nn.Module):
    """A residual block: the output is the shortcut of the input plus a learned residual.

    Args:
        before, width: number of input channels, and of channels inside the block.
        stride: reduction factor of height and width.
        bottleneck: whether to use three convolutions (1x1, 3x3, 1x1) with ``4 * width`` output channels; else two 3x3
            convolutions.
    """

    def __init__(self, before: int, width: int, stride: int, bottleneck: bool) -> None:
        super().__init__()
        self.out_channels = 4 * width if bottleneck else width
        layers = (
            [_normed(before, width, 1), nn.ReLU(), _normed(width, width, 3, stride), nn.ReLU()]
            if bottleneck
            else [_normed(before, width, 3, stride), nn.ReLU()]
        )
        self.residual = nn.Sequential(*layers, _normed(width, self.out_channels, 1 if bottleneck else 3))
        same = stride == 1 and before == self.out_channels
        self.shortcut: nn.Module = nn.Identity() if same else _normed(before, self.out_channels, 1, stride)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """images: [batch, before, height, width]."""
        total: torch.Tensor = self.shortcut(images) + self.residual(images)
        return total.relu()


#: Depth -> number of blocks in each of the four stages, and whether they are bottleneck blocks.
DEPTHS = {10: ((1, 1, 1, 1), False), 18: ((2, 2, 2, 2), False), 50: ((3, 4, 6, 3), True)}


def resnet(depth: int, classes: int, width: int = 64) -> nn.Sequential:
    """A network that maps images ``[batch, 3, height, width]`` to scores ``[batch, classes]``.

    Args:
        depth: a key of `DEPTHS`; 50 makes ResNet-50.
        classes: number of classes.
        width: channels of the first stage (usually 64).
    """
    counts, bottleneck = DEPTHS[depth]
    layers: list[nn.Module] = [_normed(3, width, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, padding=1)]
    channels = width
    for stage, count in enumerate(counts):
        for number in range(count):
            block = Block(channels, width << stage, 2 if stage and not number else 1, bottleneck)
            layers.append(block)
            channels = block.out_channels
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes))
