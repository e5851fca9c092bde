"""Residual networks: parameters and shapes."""

from __future__ import annotations

import pytest
import torch

from examples.resnet import DEPTHS, Block, resnet


def test_resnet_50_has_its_parameters() -> None:
    with torch.device("meta"):
        model = resnet(50, classes=1000)
    # As published, with two numbers for each channel of a batch norm, and no bias in convolutions.
    assert sum(parameter.numel() for parameter in model.parameters()) == 25_557_032
    assert len(list(model.parameters())) == 161


@pytest.mark.parametrize("depth", sorted(DEPTHS))
def test_each_depth_maps_images_to_scores(depth: int) -> None:
    model = resnet(depth, classes=7, width=4).eval()
    with torch.no_grad():
        scores = model(torch.randn(2, 3, 32, 32))
    assert scores.shape == (2, 7) and bool(scores.isfinite().all())


def test_an_unknown_depth_is_refused() -> None:
    with pytest.raises(KeyError):
        resnet(34, classes=10)


def test_a_block_without_a_change_of_shape_keeps_its_input() -> None:
    block = Block(8, 8, stride=1, bottleneck=False)
    assert isinstance(block.shortcut, torch.nn.Identity)
    assert Block(8, 8, stride=2, bottleneck=False)(torch.zeros(1, 8, 6, 6)).shape == (1, 8, 3, 3)
    assert Block(8, 8, stride=1, bottleneck=True).out_channels == 32
