"""Residual networks (He et al. 2015) for the examples, small enough to read and, at small sizes, to train on a CPU."""

from __future__ import annotations

import torch
from torch import nn


def _normed(before: int, after: int, kernel: int, stride: int = 1) -> nn.Sequential:
    convolution = nn.Conv2d(before, after, kernel, stride, padding=kernel // 2, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(after))


class Block(nn.Module):
    """What is learned is a correction to the input, which goes around it.

    Args:
        before, width: channels that come in; inside.
        stride: of the reduction in height and width.
        bottleneck: three convolutions of which only the middle one looks around, with four times the channels going
            out; else two that both do.
    """

    def __init__(self, before: int, width: int, stride: int, bottleneck: bool) -> None:
        super().__init__()
        self.out_channels = 4 * width if bottleneck else width
        layers = (
            [_normed(before, width, 1), nn.ReLU(), _normed(width, width, 3, stride), nn.ReLU()]
            if bottleneck
            else [_normed(before, width, 3, stride), nn.ReLU()]
        )
        self.correction = nn.Sequential(*layers, _normed(width, self.out_channels, 1 if bottleneck else 3))
        same = stride == 1 and before == self.out_channels
        self.around: nn.Module = nn.Identity() if same else _normed(before, self.out_channels, 1, stride)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """images: [batch, before, height, width]."""
        corrected: torch.Tensor = self.around(images) + self.correction(images)
        return corrected.relu()


#: Blocks of each of the four stages, and whether they are bottlenecks.
DEPTHS = {10: ((1, 1, 1, 1), False), 18: ((2, 2, 2, 2), False), 50: ((3, 4, 6, 3), True)}


def resnet(depth: int, classes: int, width: int = 64) -> nn.Sequential:
    """A network from images ``[batch, 3, height, width]`` to scores ``[batch, classes]``.

    Args:
        depth: of `DEPTHS`; 50 is the usual ResNet-50.
        classes: how many there are.
        width: channels of the first stage; 64 is the usual.
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
