"""Starts, tries and stops a small Spark cluster with Spark Connect and Jupyter: `make cluster` and its relatives.

The roles run in containers where an engine answers (`docker info`), else as plain processes of this machine.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import cluster_containers
import cluster_ports
import cluster_processes
import cluster_state
from cluster_processes import ClusterError
from cluster_state import Condition, State

FOLDER = Path(__file__).resolve().parents[1] / "build" / "cluster"


def main(argv: list[str] | None = None) -> int:
    """Does what the command line asks for. Returns the exit status."""
    parser = argparse.ArgumentParser(prog="cluster.py", description=__doc__)
    commands: dict[str, Callable[[argparse.Namespace], int]] = {
        "variant": print_variant,
        "up": up,
        "demo": demo,
        "down": down,
        "status": status,
    }
    parser.add_argument("command", choices=commands)
    parser.add_argument("--variant", choices=("auto", "containers", "processes"), default="auto")
    parser.add_argument("--ports", default="", help="ports that must be used, such as master=7077,connect=15003")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="for logs, state and secrets")
    arguments = parser.parse_args(argv)
    arguments.folder = arguments.folder.resolve()
    try:
        return commands[arguments.command](arguments)
    except (ClusterError, cluster_ports.PortError) as error:
        print(f"cluster: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("cluster: interrupted", file=sys.stderr)
        return 130


def print_variant(arguments: argparse.Namespace) -> int:
    """Prints "containers" or "processes": that of the running cluster, else what `up` would start."""
    state = running(arguments.folder)
    print(state.variant if state else choose_variant(arguments.variant)[0])
    return 0


def up(arguments: argparse.Namespace) -> int:
    """Starts the cluster, unless it runs."""
    folder = arguments.folder
    with only_one_at_a_time(folder):
        if state := running(folder):
            print("The cluster is running already.")
            show(folder, state)
            return 0
        variant, engine, why = choose_variant(arguments.variant)
        ports = cluster_ports.choose(cluster_ports.parse(arguments.ports))
        logs = f"the logs are in {folder / 'logs'}" if variant == "processes" else "the engine keeps the logs"
        print(f"Starting the cluster as {variant} ({why}); {logs}", flush=True)
        began = time.monotonic()
        if variant == "containers":
            state = cluster_containers.up(folder, engine, ports)
        else:
            state = cluster_processes.up(folder, ports)
        print(f"The cluster is ready after {time.monotonic() - began:.1f} s.")
        show(folder, state)
    return 0


def demo(arguments: argparse.Namespace) -> int:
    """Runs the demo on the cluster."""
    state = running(arguments.folder)
    if state is None:
        raise ClusterError("No cluster is running. Start it first: make cluster")
    if state.variant == "containers":
        return cluster_containers.demo(arguments.folder, state)
    return cluster_processes.demo(arguments.folder, state)


def down(arguments: argparse.Namespace) -> int:
    """Stops the cluster, and ends all processes that are left of it."""
    folder = arguments.folder
    with only_one_at_a_time(folder):
        state = cluster_state.read(folder / "state.json")
        if state is None and not cluster_state.marked(folder):
            print("No cluster is running.")
            return 0
        began = time.monotonic()
        if state is not None and state.variant == "containers":
            cluster_containers.stop(folder, state)
        else:
            cluster_processes.stop(folder, state)
        print(f"The cluster has stopped after {time.monotonic() - began:.1f} s.")
    return 0


def status(arguments: argparse.Namespace) -> int:
    """Prints the daemons and addresses; the exit status is 1 when no cluster is running."""
    state = running(arguments.folder)
    if state is None:
        print("No cluster is running.")
        return 1
    show(arguments.folder, state)
    return 0


def running(folder: Path) -> State | None:
    """The state of the running cluster; None when there is none. Raises ClusterError when only a part of it runs."""
    state = cluster_state.read(folder / "state.json")
    if state is None:
        return None
    if state.variant == "containers":
        dead = cluster_containers.find_dead(folder, state)
        if dead and len(dead) < len(cluster_containers.SERVICES):
            raise ClusterError(
                f"A part of the cluster has ended: {', '.join(dead)} "
                f"({cluster_containers.show_logs(folder, state, *dead)}). Stop the rest first: make cluster-down"
            )
        return None if dead else state
    condition = state.condition()
    if condition is Condition.BROKEN:
        ended = [process for process in state.processes if not process.is_alive()]
        logs = ", ".join(f"{process.name} (log: {process.log})" for process in ended)
        raise ClusterError(f"A part of the cluster has ended: {logs}. Stop the rest first: make cluster-down")
    return state if condition is Condition.RUNNING else None


def choose_variant(wanted: str) -> tuple[str, str, str]:
    """ "containers" or "processes", the engine ("" for processes), and the reason. Raises ClusterError."""
    if wanted == "processes":
        return "processes", "", "as CLUSTER=processes asks"
    engine, reasons = cluster_containers.find_engine()
    if engine is not None:
        return "containers", engine, f"{engine} answers"
    if wanted == "containers":
        raise ClusterError(f"CLUSTER=containers needs a container engine with compose, but {'; '.join(reasons)}.")
    return "processes", "", "; ".join(reasons)


def show(folder: Path, state: State) -> None:
    """Prints the addresses, and what to do next."""
    for process in state.processes:
        print(f"  {process.name:<14} pid {process.pid}")
    for name, address in state.addresses.items():
        print(f"  {name:<14} {address}")
    if state.variant == "processes" and "jupyter" not in state.addresses:
        print("  jupyter        not started: JupyterLab is not installed (pip install jupyterlab)")
    print(
        f"Tokens for Jupyter and Connect: the files in {folder / 'secrets'}. Next: make cluster-demo, make cluster-down"
    )


@contextmanager
def only_one_at_a_time(folder: Path) -> Iterator[None]:
    """Refuses to start and stop the cluster of one folder from two commands at the same time."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError as error:
        raise ClusterError(
            "Another `make cluster` or `make cluster-down` is at work here; wait for its end."
        ) from error
    finally:
        os.close(descriptor)


if __name__ == "__main__":
    sys.exit(main())
