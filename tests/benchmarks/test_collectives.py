"""The benchmark runs, checks its numbers, and prints a line for each op and size, with and without shared memory."""

from __future__ import annotations

import contextlib
import json
import shutil
from pathlib import Path

import pytest

from benchmarks import collectives, programs
from benchmarks.interleaved import Form
from benchmarks.namespaces import Network, UnavailableError

pytestmark = pytest.mark.slow


def is_installed(name: str) -> bool:
    try:
        programs._mpi_tools(name)
    except UnavailableError:
        return False
    return True


INSTALLED = [name for name in ("openmpi", "mpich") if is_installed(name)]


def rows_of(printed: str) -> list[dict[str, str]]:
    """The table's rows as the columns' names and cells."""
    lines = [line.split() for line in printed.splitlines()]
    start = next(number for number, words in enumerate(lines) if words[:3] == ["op", "dtype", "bytes"])
    return [dict(zip(lines[start], words, strict=True)) for words in lines[start + 1 :]]


@pytest.mark.timeout(240)
@pytest.mark.parametrize("channel", [[], ["--tcp"]])
def test_prints_a_line_for_each_op_and_size(channel: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    collectives.main(["--bytes", "4,40000", "--seconds", "0.01", *channel])
    rows = rows_of(capsys.readouterr().out)
    expected = [(op, size) for op in collectives.OPS if op != "barrier" for size in ("4", "40000")] + [("barrier", "0")]
    assert [(row["op"], row["bytes"]) for row in rows if row["op"] != "broadcast@0"] == expected
    for row in rows:
        for peer in ("gloo", *INSTALLED):
            assert float(row[peer]) > 0, row
        if row["python"] != "-":
            ratio = float(row["gloo"]) / float(row["python"])
            assert float(row["gloo/python"]) == pytest.approx(ratio, rel=0.1, abs=0.01), row
    assert {row["op"] for row in rows if row["python"] != "-"} >= {"allreduce", "broadcast", "allgather", "barrier"}


@pytest.mark.timeout(240)
def test_json_holds_every_figure_and_says_what_is_not_offered(tmp_path: Path) -> None:
    file = tmp_path / "figures.json"
    words = ["--np", "3", "--bytes", "1000", "--dtype", "float32,bfloat16", "--op", "allreduce", "--seconds", "0.01"]
    collectives.main([*words, "--json", str(file)])
    whole = json.loads(file.read_text())
    (run,) = whole["runs"]
    assert run["ranks"] == 3 and run["channel"] == "shared memory" and whole["machine"]["cores"] >= 1
    single, half = run["results"]
    assert (single["dtype"], half["dtype"], half["bytes"]) == ("float32", "bfloat16", 1000)
    for result in (single, half):
        for figure in result["subjects"].values():
            assert 0 < figure["low_us"] <= figure["us"] <= figure["high_us"]
            assert figure["blocks"] >= 3 and figure["samples"] >= figure["blocks"]
    for name in INSTALLED:
        assert name in single["subjects"] and "element type" in half["not_offered"][name]
        assert run["versions"][name].split()[-1][0].isdigit()


def test_peers_that_are_missing_are_said_and_skipped(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    which = shutil.which
    monkeypatch.setattr(programs.shutil, "which", lambda name: None if name.endswith(".mpich") else which(name))
    collectives.main(
        ["--peers", "mpich", "--op", "allreduce", "--bytes", "8", "--seconds", "0.01", "--markdown"],
    )
    printed = capsys.readouterr().out
    assert "skipped: mpich: mpicc.mpich or mpirun.mpich is not installed" in printed
    table = [line for line in printed.splitlines() if line.startswith("|")]
    assert "python" in table[0] and "mpich" not in table[0] and "gloo" not in table[0]
    assert set(table[1]) <= set("|-: ") and table[2].startswith("| allreduce | float32 | 8 |")


@pytest.mark.parametrize("words", [["--op", "scan"], ["--dtype", "complex64"], ["--np", "0"], ["--bytes", "-4"]])
def test_arguments_that_mean_nothing_are_refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exited:
        collectives.main(words)
    assert exited.value.code == 2
    assert words[0] in capsys.readouterr().err


def loopback_bytes() -> int:
    """What the loopback device of this thread's network namespace has carried since it was made."""
    lines = Path("/proc/thread-self/net/dev").read_text().splitlines()
    return int(next(line for line in lines if line.strip().startswith("lo:")).split(":")[1].split()[0])


@pytest.mark.timeout(240)
@pytest.mark.parametrize("tcp", [True, False], ids=["tcp", "shared"])
def test_every_column_goes_over_the_channel_that_the_title_names(tcp: bool) -> None:
    """In a separate namespace, so that no other traffic is counted."""
    form = Form("allreduce", "float32", 1 << 20)
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(stack.enter_context(Network.open(1)).hosts[0].entered())
        except UnavailableError as error:
            pytest.skip(str(error))
        subjects = collectives.start_subjects(stack, 2, collectives.PEERS, tcp=tcp, report=print)
        assert {subject.name for subject in subjects} >= {"python", "gloo", *INSTALLED}
        for subject in subjects:
            assert subject.check(form) is None
            before = loopback_bytes()
            subject.block(form, 1)
            carried = loopback_bytes() - before
            # One sample and the two that do not count; each rank has to send at least half of its tensor, twice.
            if subject.name != "bound" and (tcp or subject.name == "gloo"):
                assert carried >= 3 * 2 * form.bytes, f"{subject.name}: {carried} bytes"
            else:
                assert carried < form.bytes // 4, f"{subject.name}: {carried} bytes"
