"""A program that ends right after a collective of gloo's ends well."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
# The main thread keeps Python's lock until it has to wait, so that gloo's threads wait for it when the program ends.
# The handler that is registered first runs last: what it prints explains a failure.
PROGRAM = """
import atexit, faulthandler, sys

faulthandler.enable()
atexit.register(lambda: print("threads at the end:", gloo_threads._read_threads(), file=sys.stderr))
import torch
import torch.distributed as dist
import torch.distributed.nn
from spark_estimator.extensions.process_group import gloo_threads

dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
torch._C._stash_obj_in_tls("an object of Python, which each collective refers to", [])
sys.setswitchinterval(1000)
for _ in range(100):
    dist.all_reduce(torch.ones(1), async_op=True)
"""


def test_collectives_that_are_dropped_as_the_program_ends_do_not_abort_it() -> None:
    environ = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=environ, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
