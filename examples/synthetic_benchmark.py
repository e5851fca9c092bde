"""Measures the training throughput of a job, in images per second, on random images.

``horovodrun -np 2 python -m examples.synthetic_benchmark``

By default it trains ResNet-50 on images of 224 pixels on a GPU, or, without a GPU, ResNet-18 on a few images of 64
pixels for some seconds.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from collections.abc import Sequence

import torch
from torch import nn

import spark_estimator.torch as hvd
from examples.resnet import DEPTHS, resnet


def main(argv: Sequence[str] | None = None) -> float:
    """Measures on every rank; rank 0 prints. Returns the images per second of all ranks together."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    gpu = torch.cuda.is_available()
    default = "resnet50" if gpu else "resnet18"
    parser.add_argument("--model", default=default, choices=[f"resnet{depth}" for depth in sorted(DEPTHS)])
    parser.add_argument("--width", type=int, default=64, help="channels of the model's first stage")
    parser.add_argument("--image-size", type=int, default=224 if gpu else 64, help="pixels per side")
    parser.add_argument("--batch-size", type=int, default=32 if gpu else 8, help="images per rank and step")
    parser.add_argument("--num-warmup-batches", type=int, default=5 if gpu else 2, help="untimed steps at the start")
    parser.add_argument("--num-batches-per-iter", type=int, default=10 if gpu else 4, help="steps per measurement")
    parser.add_argument("--num-iters", type=int, default=10 if gpu else 3, help="number of measurements")
    parser.add_argument("--fp16-allreduce", action="store_true", help="send gradients as float16")
    parser.add_argument("--use-adasum", action="store_true", help="combine gradients with Adasum")
    options = parser.parse_args(argv)

    hvd.init()
    torch.manual_seed(hvd.rank())
    device = torch.device("cuda", hvd.local_rank() % torch.cuda.device_count()) if gpu else torch.device("cpu")
    model = resnet(int(options.model.removeprefix("resnet")), classes=1000, width=options.width).to(device)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.01),
        named_parameters=model.named_parameters(),
        compression=hvd.Compression.fp16 if options.fp16_allreduce else hvd.Compression.none,
        op=hvd.Adasum if options.use_adasum else hvd.Average,
    )
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    images = torch.randn(options.batch_size, 3, options.image_size, options.image_size, device=device)
    classes = torch.randint(1000, (options.batch_size,), device=device)

    def steps(count: int) -> float:
        """Seconds for `count` training steps."""
        begun = time.perf_counter()
        for _ in range(count):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(images), classes).backward()
            optimizer.step()
        if device.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter() - begun

    steps(options.num_warmup_batches)
    speeds = [
        options.batch_size * options.num_batches_per_iter / steps(options.num_batches_per_iter)
        for _ in range(options.num_iters)
    ]
    mean = statistics.mean(speeds)
    spread = 1.96 * statistics.stdev(speeds) / math.sqrt(len(speeds)) if len(speeds) > 1 else 0.0
    total = float(hvd.allreduce(torch.tensor(mean), op=hvd.Sum, name="images per second"))
    if hvd.rank() == 0:
        print(f"{options.model}, {options.batch_size} images of {options.image_size} pixels per rank, {device.type}")
        print(f"each rank: {mean:.1f} +- {spread:.1f} images/s; {hvd.size()} ranks: {total:.1f}", flush=True)
    return total


if __name__ == "__main__":
    main()
