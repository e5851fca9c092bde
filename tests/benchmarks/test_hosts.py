"""The benchmark between hosts runs on every layout, checks its numbers, and reports if it cannot run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NoReturn

import pytest

from benchmarks import hosts
from benchmarks.namespaces import Network, UnavailableError

pytestmark = pytest.mark.slow


@pytest.fixture
def permitted() -> None:
    """Skips where this machine, or this user, cannot have network namespaces with links of a given rate."""
    try:
        with Network.open(1) as network:
            network.hosts[0].limit(10**9)
    except UnavailableError as error:
        pytest.skip(str(error))


@pytest.mark.timeout(240)
def test_every_layout_has_its_table(permitted: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "figures.json"
    hosts.main(["--layout", "2x1,2x2", "--bytes", "4,60000", "--seconds", "0.01", "--json", str(file)])
    runs = json.loads(file.read_text())["runs"]
    assert [run["layout"] for run in runs] == ["2x1", "2x2"]
    in_all = {"flat", "encrypted", "gloo", "link", "wire"}
    for run, expected in zip(runs, [in_all, in_all | {"hierarchical"}], strict=True):
        assert [result["bytes"] for result in run["results"]] == [4, 60000]
        for result in run["results"]:
            assert set(result["subjects"]) == expected
            assert all(figure["us"] > 0 for figure in result["subjects"].values())
            assert result["subjects"]["wire"]["blocks"] == 0 < result["subjects"]["link"]["blocks"]
    printed = capsys.readouterr().out
    assert "2x1 (hosts x ranks), links of 1 Gbit/s" in printed
    assert printed.count("wire/flat") == 2 and printed.count("flat/hierarchical") == 1


@pytest.mark.timeout(240)
def test_other_ops_have_no_bound(permitted: None, tmp_path: Path) -> None:
    file = tmp_path / "figures.json"
    words = ["--layout", "2x1", "--op", "broadcast,barrier", "--bytes", "512", "--gigabits", "0.1"]
    hosts.main([*words, "--seconds", "0.01", "--json", str(file)])
    (run,) = json.loads(file.read_text())["runs"]
    assert [result["op"] for result in run["results"]] == ["broadcast", "barrier"]
    for result in run["results"]:
        assert set(result["subjects"]) == {"flat", "encrypted", "gloo"}
        assert "allreduce only" in result["not_offered"]["link"]


def test_where_it_cannot_run_it_says_so(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(hosts: int) -> NoReturn:
        raise UnavailableError("network namespaces are not permitted here")

    monkeypatch.setattr(Network, "open", refuse)
    hosts.main(["--layout", "2x1"])
    assert capsys.readouterr().out == "skipped: network namespaces are not permitted here.\n"


def test_the_wire_carries_headers_as_well() -> None:
    # 16 MiB between two hosts: each sends all of it, in 11,587 frames of 1,514 bytes.
    assert hosts.wire_us(2, 16 << 20, 1e9) == pytest.approx(11586.5 * 1514 * 8 / 1e3, rel=1e-4)
    assert hosts.wire_us(4, 1000, 1e9) == pytest.approx(1.5 * hosts.wire_us(2, 1000, 1e9))


@pytest.mark.parametrize(
    "words", [["--layout", "1x2"], ["--layout", "2"], ["--layout", "2x0"], ["--gigabits", "0"], ["--bytes", "x"]]
)
def test_arguments_that_mean_nothing_are_refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exited:
        hosts.main(words)
    assert exited.value.code == 2
    assert words[0] in capsys.readouterr().err


@pytest.mark.skipif(not hosts.SIMULATOR.exists(), reason="make build makes the simulator")
def test_the_model_of_large_tensors_is_the_wires_time() -> None:
    times = hosts.modelled(hosts.Layout(4, 1), 1, (16 << 20,))
    assert times == {"model": {16 << 20: pytest.approx(hosts.wire_us(4, 16 << 20, 1e9), rel=0.01)}}
    assert set(hosts.modelled(hosts.Layout(2, 2), 1, (4096,))) == {"model", "model-hosts"}
