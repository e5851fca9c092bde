"""Times training steps over slow links: gradients as float32, bfloat16 and int8, DDP, LocalSGD and DiLoCo.

``python -m benchmarks.fewer_bytes [--hosts 2] [--gigabits 1] [--models resnet50] [--variants float32,int8,ddp]`` puts
one rank, or ``--ranks-per-host``, on each of some network namespaces, whose links have the given rate, and prints for
each model milliseconds a step of the slowest rank (median of the rounds), and how many times faster than the first
variant each is. Variants take turns in the same processes. A round of LocalSGD or DiLoCo is 32 steps with one exchange;
of the others `--steps`.

Before the first round each variant makes some steps, after which all ranks must have the same parameters, and those of
int8 must be close to float32's.

Requires what ``namespaces`` requires; if that is unavailable, prints the reason and measures nothing.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.namespaces import Network, UnavailableError
from spark_estimator.collectives.rendezvous import offer_to_command
from spark_estimator.console import end_with_reader
from spark_estimator.launch.job.environment import decide_host_threads, make_worker_environment

VARIANTS = ("float32", "bf16", "int8", "ddp", "local_sgd", "diloco", "diloco_streaming")
_GLOO_PORT = 29500


def run(options: argparse.Namespace) -> dict[str, dict[str, list[float]]]:
    """Starts the ranks and returns what rank 0 has measured: model -> variant -> milliseconds a step of each round."""
    with Network.open(options.hosts) as network, contextlib.ExitStack() as stack:
        for host in network.hosts:
            host.limit(round(options.gigabits * 1e9))
        processes = []
        for rank, (rendezvous, endpoint) in enumerate(network.rendezvous(options.ranks_per_host)):
            fd, variables = offer_to_command(rendezvous)
            stack.callback(os.close, fd)
            arguments = [sys.executable, "-m", "benchmarks.fewer_bytes.rank", "--parent", str(os.getpid())]
            arguments += ["--gloo", f"tcp://{network.hosts[0].address}:{_GLOO_PORT}"]
            arguments += ["--models", ",".join(options.models), "--variants", ",".join(options.variants)]
            arguments += ["--rounds", str(options.rounds), "--steps", str(options.steps)]
            environment = make_worker_environment(
                os.environ,
                {"PYTHONPATH": str(Path(__file__).parents[2]), "GLOO_SOCKET_IFNAME": "eth0", **variables},
                decide_host_threads(options.hosts * options.ranks_per_host),
            )
            with network.hosts[rank // options.ranks_per_host].entered():
                processes.append(
                    subprocess.Popen(
                        arguments,
                        env=environment,
                        pass_fds=(fd, *endpoint.filenos()),
                        stdout=subprocess.PIPE,
                        start_new_session=True,
                        text=True,
                    )
                )
            endpoint.close()
        outputs = [process.communicate()[0] for process in processes]
        if any(process.returncode for process in processes):
            raise SystemExit(f"benchmark: ranks ended with {[process.returncode for process in processes]}")
        result: dict[str, dict[str, list[float]]] = json.loads(outputs[0].splitlines()[-1])
        return result


def median(values: Sequence[float]) -> float:
    """The middle one; of an even number the lower of the two."""
    return sorted(values)[(len(values) - 1) // 2]


@end_with_reader
def main(argv: Sequence[str] | None = None) -> None:
    """Parses the arguments and prints a table."""
    parser = argparse.ArgumentParser("python -m benchmarks.fewer_bytes", description=__doc__)
    parser.add_argument("--hosts", type=int, default=2, help="number of namespaces (default 2)")
    parser.add_argument("--ranks-per-host", type=int, default=1, metavar="RANKS", help="on each (default 1)")
    parser.add_argument("--gigabits", type=float, default=1.0, help="rate of each link in Gbit/s (default 1)")
    parser.add_argument("--models", type=lambda text: text.split(","), default=["resnet50"])
    parser.add_argument("--variants", type=lambda text: text.split(","), default=list(VARIANTS[:4]))
    parser.add_argument("--rounds", type=int, default=5, help="of each variant (default 5)")
    parser.add_argument("--steps", type=int, default=3, help="in a round (default 3)")
    options = parser.parse_args(argv)
    if unknown := set(options.variants) - set(VARIANTS):
        parser.error(f"--variants: {', '.join(sorted(unknown))}: expected some of {', '.join(VARIANTS)}.")
    try:
        measured = run(options)
    except UnavailableError as error:
        print(f"skipped: {error}.")
        return
    for model, by_variant in measured.items():
        layout = f"{options.hosts} hosts x {options.ranks_per_host}"
        print(f"{model}, {layout}, links of {options.gigabits:g} Gbit/s; ms a step, slowest rank")
        first = options.variants[0]
        for variant in options.variants:
            times = by_variant[variant]
            times_faster = median(by_variant[first]) / median(times)
            print(
                f"  {variant:18} {median(times):9.1f}   ({min(times):.1f} to {max(times):.1f})   "
                f"{first}/{variant} {times_faster:.2f}"
            )


if __name__ == "__main__":
    main()
