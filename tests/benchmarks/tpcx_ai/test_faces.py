"""Use case 9: faces are located, the loss separates people, and a small training recognizes them."""

from __future__ import annotations

import numpy
import pytest

pytest.importorskip("keras")

from benchmarks.tpcx_ai import faces
from benchmarks.tpcx_ai.__main__ import run


def test_aligned_faces_fill_the_picture() -> None:
    pytest.importorskip("PIL")
    chance = numpy.random.default_rng(4)
    for number in range(12):
        face = faces.aligned(faces.Person(number).picture(chance))
        assert face.shape == (32, 32, 3) and 0 <= face.min() <= face.max() <= 1
        warm = face[..., 0] > face[..., 2]
        assert warm[16].mean() > 0.8 and warm[:, 16].mean() > 0.8  # from side to side
        assert warm[0, 0] + warm[0, -1] + warm[-1, 0] + warm[-1, -1] < 3  # and background in the corners


def test_a_loss_of_pairs_that_are_not_far_enough_apart() -> None:
    labels = numpy.zeros((4, 3), numpy.float32)
    labels[:, 0] = [0, 0, 1, 1]
    apart = numpy.array([[1, 0, 0], [1, 0, 0], [-1, 0, 0], [-1, 0, 0]], numpy.float32)
    assert numpy.asarray(faces.triplet_loss(labels, apart)).tolist() == [0, 0, 0, 0]
    same = numpy.tile(numpy.array([[0, 1, 0]], numpy.float32), (4, 1))
    assert numpy.allclose(numpy.asarray(faces.triplet_loss(labels, same)), 0.2)
    swapped = apart[[0, 2, 1, 3]]
    # From each face, the other of its person is at 4, and those of the other person are at 0 and 4.
    assert numpy.allclose(numpy.asarray(faces.triplet_loss(labels, swapped)), (4.2 + 0.2) / 2)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_small_training_recognizes_people() -> None:
    pytest.importorskip("tensorflow")
    result = run(9, 2, rows=720, epochs=6)
    assert (result.ranks, result.rows, result.held_out) == (2, 720, 180)
    assert result.quality > 0.5  # guessing has 0.04
