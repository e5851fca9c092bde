"""The ranks of the PyTorch binding's tests serve these, too."""

from tests.torch.conftest import job_of_one, pools, three_ranks, two_ranks

__all__ = ["job_of_one", "pools", "three_ranks", "two_ranks"]
