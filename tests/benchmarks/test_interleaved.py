"""Wrong numbers, lost ranks and late ones end a measurement and are named; figures are medians over turns."""

from __future__ import annotations

import sys
import textwrap
from datetime import timedelta

import pytest

from benchmarks.interleaved import BenchmarkError, Block, Command, Figure, Form, Group, Subject, measure

# A rank that follows a script: argv is the socket, its rank, and for each verb the answer ("die" ends it).
RANK = textwrap.dedent("""
    import socket, sys, time
    path, rank, size = sys.argv[1], sys.argv[2], sys.argv[3]
    answers = dict(word.split("=", 1) for word in sys.argv[4:])
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(path)
        with connection.makefile("rw") as lines:
            print("rank", rank, size, file=lines, flush=True)
            for line in lines:
                verb, samples = line.split()[0], line.split()[-1]
                answer = answers.get(verb, "quit")
                if answer == "die":
                    sys.exit("I leave early")
                if answer == "late":
                    time.sleep(60)
                if answer == "quit":
                    break
                times = [str(1000 * (1 + int(rank)))] * int(samples)
                print(answer.replace("@", " ".join(times)), file=lines, flush=True)
""")


def group(*answers: list[str]) -> Group:
    """One rank for each list of answers."""

    def commands(path: str) -> list[Command]:
        words = [[path, str(rank), str(len(answers)), *answer] for rank, answer in enumerate(answers)]
        return [Command([sys.executable, "-c", RANK, *each]) for each in words]

    return Group("the library", len(answers), commands)


GOOD = ["check=ok", "block=times @"]
FORM = Form("allreduce", "float32", 4096)


def test_small_ops_are_measured_many_at_a_time() -> None:
    assert [Form("allreduce", "float32", size).batch for size in (4, 65536, 1 << 20)] == [32, 4, 1]
    assert Form("barrier", "float32", 0).batch == 32


def test_a_figure_is_the_median_of_the_slowest_rank() -> None:
    with group(GOOD, GOOD, GOOD) as ranks:
        line = measure(FORM, [Subject("mine", ranks, "plan")], seconds=0.01)
    figure = line.figures["mine"]
    assert (figure.us, figure.rank0_us, figure.low_us, figure.high_us) == (3.0, 1.0, 3.0, 3.0)
    assert not line.refusals


def test_quartiles_come_from_the_blocks() -> None:
    figure = Figure.of([Block(time, 1.0, 10) for time in (9.0, 1.0, 2.0, 3.0, 4.0)])
    assert (figure.us, figure.low_us, figure.high_us, figure.blocks, figure.samples) == (3.0, 2.0, 4.0, 5, 50)
    assert Figure.of([Block(7.0, 1.0, 3)]).low_us == 7.0


def test_what_is_not_offered_is_left_out() -> None:
    with group(GOOD) as able, group(["check=unsupported it has no such op"]) as unable:
        line = measure(FORM, [Subject("able", able, "x"), Subject("unable", unable, "x")], seconds=0.01)
    assert set(line.figures) == {"able"}
    assert line.refusals == {"unable": "it has no such op"}


@pytest.mark.parametrize(
    ("answers", "parts"),
    [
        (
            ["check=wrong element 3 of 9", "block=times @"],
            ["mine", "allreduce of 4096 bytes", "rank 1", "element 3 of 9"],
        ),
        (["check=ok", "block=failed no memory"], ["mine", "rank 1", "no memory"]),
        (["check=die"], ["the library", "rank 1 ended during 'check plan allreduce", "I leave early"]),
    ],
)
def test_a_rank_that_fails_ends_the_measurement(answers: list[str], parts: list[str]) -> None:
    with group(GOOD, answers) as ranks, pytest.raises(BenchmarkError) as raised:
        measure(FORM, [Subject("mine", ranks, "plan")], seconds=0.01)
    assert all(part in str(raised.value) for part in parts), raised.value


def test_a_rank_that_does_not_answer_is_named() -> None:
    with group(GOOD, ["check=late"]) as ranks:
        with pytest.raises(BenchmarkError, match="rank 1 did not answer 'check"):
            ranks.ask("check plan allreduce float32 4 64", timeout=timedelta(seconds=0.3))


def test_a_program_that_ends_at_its_start_is_quoted() -> None:
    with pytest.raises(BenchmarkError, match=r"ended with status 3(.|\n)*no such device"):
        Group("mine", 2, lambda _: [Command([sys.executable, "-c", "print('no such device'); exit(3)"])])
