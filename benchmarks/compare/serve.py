"""Runs the jobs of one system on request: a process that keeps its session, so that all systems are measured in turns.

``python -m benchmarks.compare.serve SYSTEM FOLDER FD`` reads names of jobs from standard input, and answers each with a
line of JSON on the descriptor FD.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import os
import sys
import time

SYSTEMS = {
    "spark_estimator": ("benchmarks.compare.ours", "Ours", ("spark_estimator", "pyspark", "torch")),
    "TorchDistributor": ("benchmarks.compare.torch_distributor", "ByTorchDistributor", ("pyspark", "torch")),
    "Ray Train": ("benchmarks.compare.ray_train", "ByRay", ("ray", "torch")),
}


def main() -> None:
    """Answer until standard input ends."""
    name, folder, descriptor = sys.argv[1:]
    module, kind, packages = SYSTEMS[name]
    system = getattr(importlib.import_module(module), kind)(folder)
    versions = {package: importlib.metadata.version(package) for package in packages}
    from benchmarks.compare import job

    with os.fdopen(int(descriptor), "w") as answers:
        print(json.dumps({"versions": versions}), file=answers, flush=True)
        model = job.make_model()
        for line in sys.stdin:
            began, started = time.time(), time.perf_counter()
            if line.strip() == "start":
                answer = {"seconds": system.start() - began}
            elif line.strip() == "train":
                model = system.train()
                answer = {"seconds": time.perf_counter() - started, "loss": job.measure_loss(model, folder)}
            else:
                mean = system.predict(model)
                answer = {"seconds": time.perf_counter() - started, "mean": mean, "expected": _mean(model, folder)}
            print(json.dumps(answer), file=answers, flush=True)


def _mean(model: object, folder: str) -> float:
    import torch

    from benchmarks.compare import job

    assert isinstance(model, torch.nn.Module)
    with torch.no_grad():
        return float(model(job.read_table(folder)[0]).mean())


if __name__ == "__main__":
    main()
