"""``python -m spark_estimator explain``: every error has a section, and it prints as plain text."""

from __future__ import annotations

import re

import pytest

from spark_estimator import errors, explain

KINDS = [
    kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, BaseException) and kind.__module__ == errors.__name__
]


def test_every_error_has_the_code_of_its_section() -> None:
    headings = {code: re.match("#+ (.*)", text)[1] for code, text in explain.read_sections().items()}  # type: ignore[index]
    assert headings == {**{errors.get_code(kind): kind.__name__ for kind in KINDS}, "STALL": "Stalls"}


@pytest.mark.parametrize("name", ["WORKER_FAILED", "worker_failed", "WorkerFailedError"])
def test_the_command_prints_cause_and_remedy(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert explain.main([name]) == 0
    text = capsys.readouterr().out
    assert text.startswith("WorkerFailedError\n\nCode. `WORKER_FAILED`\n\nCause. A rank failed.")
    assert "\n    rank 1 (host vm, pid 32558) was killed by signal 9" in text
    assert "how to run an elastic job (docs/how-to/elastic-jobs.md)" in text
    assert "StartTimeoutError" not in text, "that is the next section"


def test_links_lead_to_the_published_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(errors, "DOCUMENTATION_URL", "https://docs.example")
    text = explain.to_terminal_text("See [](../docs/how-to/ssh-hosts.md) and [Stalls](#stalls).")
    assert text == "See https://docs.example/how-to/ssh-hosts.html and Stalls (explain STALL)."


def test_quoted_output_has_quotes() -> None:
    text = explain.to_terminal_text("ends with *given\nup* or **fails**: 2 * 3\n\n```text\n*a*\n```")
    assert text == 'ends with "given\nup" or fails: 2 * 3\n\n    *a*'


def test_no_marks_of_markdown_are_left() -> None:
    for section in explain.read_sections().values():
        assert not re.search(r"\]\(|```|\{\w+\}`|^#|^\(kind", explain.to_terminal_text(section), re.MULTILINE)


def test_without_a_code_it_lists_all(capsys: pytest.CaptureFixture[str]) -> None:
    assert explain.main([]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(KINDS) + 1 and "PEER_LOST               PeerLostError" in lines


def test_an_unknown_code_gets_similar_ones(capsys: pytest.CaptureFixture[str]) -> None:
    for word, hint in (
        ("worker_faild", "Did you mean WORKER_FAILED"),
        ("WORKER_FAIL", "Did you mean WORKER_FAILED?"),
        ("lost", 'Did you mean PEER_LOST or WORKER_FAILED (kind "lost")?'),
        ("zzzz", "Codes are "),
    ):
        assert explain.main([word]) == 2
        assert f"{word!r} is not the code of an error. {hint}" in capsys.readouterr().err
