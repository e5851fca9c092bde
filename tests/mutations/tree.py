"""A copy of the tree in which mutations are tried: the checkout itself is never changed, and never tested."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.mutations.mutation import Mutation

LIBRARY = "spark_estimator/libspark_estimator_engine.so"


class HarnessError(Exception):
    """The tree could not be copied or built, which shows nothing about a test."""


class Tree:
    """The copy of a checkout.

    Args:
        source: the checkout.
        folder: where the copy is, as ``tree``, with its native build beside it. What is there is used again.
    """

    def __init__(self, source: Path, folder: Path) -> None:
        self._source = source
        self._build = folder / "native"
        self.root = folder / "tree"
        self.log = folder / "log.txt"

    def update(self) -> None:
        """Make the copy equal to the checkout: what git tracks or does not ignore, and the engine's library.

        Files that are equal keep their time, so that only what differs is compiled again.
        """
        listed = ("git", "-C", str(self._source), "ls-files", "-z", "--cached", "--others", "--exclude-standard")
        names = subprocess.run(listed, capture_output=True, text=True, check=True).stdout.split("\0")
        files = {name for name in names if name and (self._source / name).is_file()}
        files |= {LIBRARY} if (self._source / LIBRARY).exists() else set()
        for path in [path for path in self.root.rglob("*") if path.is_file() and "__pycache__" not in path.parts]:
            if str(path.relative_to(self.root)) not in files:
                path.unlink()
        for name in files:
            if not (self.root / name).exists() or (self.root / name).read_bytes() != (self._source / name).read_bytes():
                self._put(name, (self._source / name).read_bytes())
        code = "import spark_estimator, tests.ranks; print(spark_estimator.__file__, tests.ranks.__file__)"
        places = self.run([sys.executable, "-c", code], 100).stdout
        if places.count(f"{self.root}/") != 2:
            raise HarnessError(f"tests in the copy import from elsewhere: {places}")

    def _put(self, name: str, content: bytes) -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        new = path.with_name(f".{path.name}.new")  # a process may still have the old library mapped
        new.write_bytes(content)
        shutil.copymode(self._source / name, new)
        new.replace(path)
        # Python compares size and whole seconds: compiled code of another version may look valid.
        for compiled in path.parent.glob(f"__pycache__/{path.stem}.*"):
            compiled.unlink()

    @contextlib.contextmanager
    def mutated(self, mutation: Mutation) -> Iterator[None]:
        """Within the block the copy has the change."""
        original = (self.root / mutation.file).read_text()
        self._put(mutation.file, mutation.applied(original).encode())
        try:
            yield
        finally:
            self._put(mutation.file, original.encode())

    @contextlib.contextmanager
    def built(self, tests: Sequence[str]) -> Iterator[None]:
        """Within the block the copy's Python tests use an engine that is compiled from the copy.

        Of the C++ tests those that are named are compiled, too.

        Raises:
            HarnessError: it does not compile.
        """
        tools = Path(sys.executable).parent
        if not (self._build / "build.ninja").exists():
            options = ("-DCMAKE_BUILD_TYPE=Release", "-DSPARK_ESTIMATOR_BUILD_TESTS=ON")
            place = ("-S", self.root / "native", "-B", self._build, "-G", "Ninja")
            self._make([tools / "cmake", *place, f"-DCMAKE_MAKE_PROGRAM={tools / 'ninja'}", *options])
        targets = {Path(test.partition("::")[0]).stem for test in tests if test.startswith("native/")}
        if any(test.startswith("tests/") for test in tests):
            targets.add("spark_estimator_engine")
        self._make([tools / "ninja", "-C", self._build, *sorted(targets)])
        shipped = (self.root / LIBRARY).read_bytes()
        if "spark_estimator_engine" in targets:
            self._put(LIBRARY, (self._build / Path(LIBRARY).name).read_bytes())
        try:
            yield
        finally:
            self._put(LIBRARY, shipped)

    def _make(self, command: Sequence[str | Path]) -> None:
        done = self.run([str(word) for word in command], 1800)
        if done.returncode:
            raise HarnessError(f"{command[0]} ended with {done.returncode}; see {self.log}")

    def program(self, test: str) -> list[str]:
        """Return the command that runs a C++ test."""
        return [str(next(self._build.rglob(Path(test.partition("::")[0]).stem)))]

    def run(self, command: list[str], seconds: float, **environ: str) -> subprocess.CompletedProcess[str]:
        """Run a command in the copy, with its output at the end of the log as well.

        All that it leaves is removed: its temporary files, and processes that have their folder in their environment.

        Returns:
            Its end; where it took longer and was killed, its code is that of `timeout`, 124.
        """
        kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
        with tempfile.TemporaryDirectory(prefix="mutations", ignore_cleanup_errors=True) as scratch:
            written = Path(scratch, "output")  # not a pipe, which a process that is left would hold open
            with written.open("w") as output:
                process = subprocess.Popen(
                    command,
                    cwd=self.root,
                    env={**kept, "PYTHONPATH": str(self.root), "TMPDIR": scratch, **environ},
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            try:
                code = process.wait(seconds)
            except subprocess.TimeoutExpired:
                code = 124
            _kill_all(scratch)
            process.wait()
            text = written.read_text(errors="replace")
        with self.log.open("a") as log:
            log.write(f"\n$ {' '.join(command)}\n{text}\n[{code}]\n")
        return subprocess.CompletedProcess(command, code, text)


def _kill_all(mark: str) -> None:
    """Kill every process that has the text in its environment."""
    for path in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if mark.encode() in path.read_bytes():
                os.kill(int(path.parent.name), signal.SIGKILL)
