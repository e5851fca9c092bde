"""Traces of several ranks are merged on one clock; truncated and invalid files."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path
from typing import Any

import pytest

from spark_estimator.__main__ import main


class Rank:
    """Writes a rank's file as the engine does, with another clock."""

    def __init__(self, rank: int, size: int, *, ahead: float = 0.0, drift: float = 0.0, process_set: int = 0) -> None:
        self.rank = rank
        self.ahead = ahead
        self.drift = drift
        wall = {"origin_us": 5e6 + ahead, "origin_wall_clock_us": 1.7e15 + 5e6}
        facts = {"format": 1, "rank": rank, "size": size, "process_set": process_set, "process": f"h{rank} (pid 1)"}
        about = {"name": f"rank {rank}, h{rank} (pid 1)", "spark_estimator": facts | wall}
        self.events = [
            {"ph": "M", "name": "process_name", "pid": rank, "args": about},
            {"ph": "M", "name": "thread_name", "pid": rank, "tid": 2, "args": {"name": "allreduce.x"}},
        ]

    def op(self, sequence: int, end: float, *, op: str = "ALLREDUCE", **more: Any) -> None:
        """An op that ends, by the reference's clock, at `end` microseconds."""
        end = end + self.ahead + self.drift * end
        place = {"pid": self.rank, "tid": 2}
        span = {"ph": "X", "name": f"NEGOTIATE_{op}", "ts": end - 90.0, "dur": 40.0}
        self.events.append(span | place)
        span = {"ph": "X", "name": op, "ts": end - 50.0, "dur": 50.0}
        self.events.append(span | place | {"args": {"sequence": sequence, "bytes": 8, **more}})

    def text(self, complete: bool = True) -> str:
        lines = "".join(json.dumps(event, separators=(",", ":")) + ",\n" for event in self.events)
        if not complete:
            return "[\n" + lines
        end = {"ph": "M", "name": "process_sort_index", "pid": self.rank, "args": {"sort_index": self.rank}}
        end["args"]["spark_estimator_end"] = {"dropped_events": 0}
        return f"[\n{lines}{json.dumps(end)}\n]\n"


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    status = main(["timeline", "merge", *map(str, arguments)])
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def write(folder: Path, *texts: str) -> list[Path]:
    files = [folder / f"in{number}.json" for number in range(len(texts))]
    for file, text in zip(files, texts, strict=True):
        file.write_text(text)
    return files


def ends(out: Path, rank: int, name: str = "ALLREDUCE") -> dict[int, float]:
    events = json.loads(out.read_text())
    rank_events = [event for event in events if event["pid"] == rank and event["name"] == name]
    return {event["args"]["sequence"]: event["ts"] + event["dur"] for event in rank_events}


def test_clocks_are_aligned_by_common_ops(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    chance = random.Random(1)
    ranks = [Rank(0, 3), Rank(1, 3, ahead=7_000_000.0), Rank(2, 3, ahead=-123.5)]
    for sequence in range(1, 200):
        for rank in ranks:
            # A tenth of the ends is late, by up to a second.
            late = chance.random() * (1e6 if chance.random() < 0.1 else 5)
            rank.op(sequence, 1e9 + sequence * 1000 + late)
    out = tmp_path / "out.json"
    status, output, error = run(capsys, out, *write(tmp_path, *(rank.text() for rank in reversed(ranks))))
    assert (status, error) == (0, "")
    assert "rank 1: " in output and "clock +7000.0" in output and "199 common ops" in output and "missing" not in output
    assert "drifting" not in output and "ends early" not in output
    for rank in (1, 2):
        difference = sorted(ends(out, rank)[number] - ends(out, 0)[number] for number in ends(out, 0))
        assert abs(difference[len(difference) // 2]) < 0.01
    events = json.loads(out.read_text())
    names = [event["args"]["name"] for event in events if event["name"] == "process_name"]
    assert names == ["rank 0, h0 (pid 1)", "rank 1, h1 (pid 1)", "rank 2, h2 (pid 1)"]
    assert {event["args"]["name"] for event in events if event["name"] == "thread_name"} == {"allreduce.x"}
    assert [path.name for path in tmp_path.iterdir() if "partial" in path.name] == []


def test_drifting_clocks_are_straightened(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    chance = random.Random(2)
    ranks = [Rank(0, 2), Rank(1, 2, ahead=1000.0, drift=50e-6)]
    for sequence in range(1, 400):
        for rank in ranks:
            rank.op(sequence, sequence * 1e6 + chance.random() * 20)  # seven minutes
    out = tmp_path / "out.json"
    status, output, _ = run(capsys, out, *write(tmp_path, *(rank.text() for rank in ranks)))
    assert status == 0
    drift = re.search(r"drifting \+([\d.]+) us a second", output)
    assert drift and float(drift[1]) == pytest.approx(50, abs=0.5)
    first, second = ends(out, 0), ends(out, 1)
    assert max(abs(first[number] - second[number]) for number in first) < 40


def test_failed_ops_and_roots_of_broadcasts_do_not_align(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ranks = [Rank(0, 2), Rank(1, 2, ahead=500.0)]
    for rank in ranks:
        for sequence in range(1, 10):
            rank.op(sequence, 1e6 + sequence + rank.rank * 300, op="BROADCAST")
        for sequence in range(10, 20):
            rank.op(sequence, 2e6 + sequence + rank.rank * 9000, outcome="mismatch")
        rank.op(20, 3e6)
    status, output, _ = run(capsys, tmp_path / "out.json", *write(tmp_path, *(rank.text() for rank in ranks)))
    assert status == 0
    assert "clock +0.500 ms against rank 0's (1 common op, " in output


def test_broadcasts_align_where_there_is_nothing_else(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ranks = [Rank(0, 2), Rank(1, 2, ahead=500.0)]
    for rank in ranks:
        rank.op(1, 1e6, op="BROADCAST")
    status, output, _ = run(capsys, tmp_path / "out.json", *write(tmp_path, *(rank.text() for rank in ranks)))
    assert status == 0
    assert "clock +0.500 ms" in output


def test_without_a_common_op_the_walls_clock_must_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ranks = [Rank(0, 2), Rank(1, 2, ahead=77_000.0)]
    ranks[0].op(1, 1e6)
    ranks[1].op(2, 2e6)
    out = tmp_path / "out.json"
    status, output, _ = run(capsys, out, *write(tmp_path, *(rank.text() for rank in ranks)))
    assert status == 0
    assert "aligned by wall clock" in output
    assert ends(out, 1)[2] - ends(out, 0)[1] == pytest.approx(1e6, abs=0.5)
    named = [event["args"] for event in json.loads(out.read_text()) if event["name"] == "process_name"]
    walls = [
        json.loads(rank.text().split("\n")[1][:-1])["args"]["spark_estimator"]["origin_wall_clock_us"] for rank in ranks
    ]
    assert [facts["start_time_since_epoch_in_micros"] for facts in named] == [round(wall) for wall in walls]


def test_truncated_and_missing_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ranks = [Rank(0, 4), Rank(1, 4, ahead=50.0), Rank(3, 4)]
    for rank in ranks:
        for sequence in range(1, 5):
            rank.op(sequence, 1e6 + sequence * 100)
    texts = [ranks[0].text(), ranks[1].text(complete=False)[:-30], ranks[2].text(complete=False), ""]
    out = tmp_path / "out.json"
    status, output, error = run(capsys, out, *write(tmp_path, *texts))
    assert (status, error) == (0, "")
    rank_0, rank_1, rank_3, missing = (line for line in output.splitlines() if line.startswith(("rank", "missing")))
    assert "ends early" not in rank_0
    assert "ends early" in rank_1 and "1 line skipped" in rank_1 and "3 common ops" in rank_1
    assert "ends early" in rank_3 and "skipped" not in rank_3
    assert missing == "missing: rank 2"
    assert "in3.json: skipped, it is empty" in output
    assert sorted(ends(out, 1)) == [1, 2, 3]


def test_process_sets_have_rows_of_their_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole, other = Rank(0, 2), Rank(1, 2, ahead=900.0)
    of_set = [Rank(0, 2, process_set=1), Rank(1, 2, ahead=900.0, process_set=1)]
    for rank in (whole, *of_set):
        rank.op(1, 1e6 + (rank is whole) * 5000)
    out = tmp_path / "out.json"
    texts = [rank.text() for rank in (whole, *of_set)]
    status, output, _ = run(capsys, out, *write(tmp_path, *texts))
    assert status == 0
    assert "missing: rank 1" in output  # its file of the whole job; the set's aligns it nevertheless
    assert "clock +0.900 ms" in output
    status, output, _ = run(capsys, out, *write(tmp_path, *texts, other.text()))
    assert status == 0 and "missing" not in output
    rows = {
        (event["pid"], event["tid"]): event["args"]["name"]
        for event in json.loads(out.read_text())
        if event["name"] == "thread_name"
    }
    assert rows == {
        (0, 2): "allreduce.x",
        (1, 2): "allreduce.x",
        (0, 1_000_002): "set 1: allreduce.x",
        (1, 1_000_002): "set 1: allreduce.x",
    }


def test_lost_events_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rank = Rank(0, 1)
    rank.op(1, 1e6)
    text = rank.text().replace('"dropped_events": 0', '"dropped_events": 12')
    status, output, _ = run(capsys, tmp_path / "out.json", *write(tmp_path, text))
    assert status == 0
    assert "12 events were lost" in output


@pytest.mark.parametrize(
    "line",
    [
        '{"ph":"X","name":"ALLREDUCE","ts":NaN,"dur":1,"pid":0,"tid":2}',
        '{"ph":"X","name":"ALLREDUCE","ts":1,"dur":Infinity,"pid":0,"tid":2}',
        '{"ph":"X","name":"ALLREDUCE","ts":"soon","pid":0,"tid":2}',
        '{"ph":"X","name":"ALLREDUCE","pid":0,"tid":2,"args":{"sequence":1}}',
        '{"ph":"X","name":"ALLREDUCE","ts":1,"dur":1,"pid":0}',
        '{"name":"ALLREDUCE","ts":1,"pid":0,"tid":1}',
        '{"ph":"X"}',
        '"ALLREDUCE"',
        "[" * 100_000,
        "\x00\x01",
    ],
)
def test_broken_lines_are_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str], line: str) -> None:
    rank = Rank(0, 1)
    rank.op(1, 1e6)
    text = rank.text().replace('\n{"ph":"X","name":"NEG', f'\n{line},\n{{"ph":"X","name":"NEG')
    out = tmp_path / "out.json"
    status, output, _ = run(capsys, out, *write(tmp_path, text))
    assert status == 0
    assert "; 1 line skipped" in output
    assert list(ends(out, 0)) == [1]


def test_what_cannot_be_joined_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rank_0, also_rank_0, of_two, of_three, prose = write(
        tmp_path, Rank(0, 2).text(), Rank(0, 2).text(), Rank(1, 2).text(), Rank(2, 3).text(), "a story\n" * 3
    )
    newer = tmp_path / "newer.json"
    newer.write_text(Rank(0, 2).text().replace('"format":1', '"format":2'))
    empty = tmp_path / "empty.json"
    empty.touch()
    out = tmp_path / "out.json"
    out.write_text("as it was")
    for files, complaint in (
        ([rank_0, also_rank_0], "are both from rank 0"),
        ([of_two, of_three], "they are from different jobs"),
        ([prose], "is not a timeline of a spark_estimator rank"),
        ([newer], "format 2; this version reads 1"),
        ([empty], "all files are empty"),
        ([tmp_path / "absent.json"], "absent.json can't be read: No such file"),
        ([tmp_path], "can't be read: Is a directory"),
        ([rank_0, out], "is both the output and an input"),
    ):
        status, output, error = run(capsys, out, *files)
        assert (status, output) == (1, "")
        assert complaint in error and error.count("\n") == 1
        assert out.read_text() == "as it was"
    status, _, error = run(capsys, tmp_path / "nowhere" / "out.json", rank_0)
    assert status == 1 and "out.json can't be written: No such file" in error
    assert sorted(path.name for path in tmp_path.iterdir() if "partial" in path.name) == []


def test_a_joined_trace_is_not_joined_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out.json"
    assert run(capsys, out, *write(tmp_path, Rank(0, 1).text()))[0] == 0
    status, _, error = run(capsys, tmp_path / "again.json", out)
    assert status == 1 and "can't be merged again" in error


def test_a_ranks_trace_is_not_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rank_0, rank_1 = write(tmp_path, Rank(0, 2).text(), Rank(1, 2).text())
    before = rank_0.read_text()
    status, _, error = run(capsys, rank_0, rank_1)
    assert status == 1 and "it is a rank's timeline; the output comes first" in error
    assert rank_0.read_text() == before
