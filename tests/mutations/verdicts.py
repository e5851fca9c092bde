"""Runs tests in the copy of the tree, before a mutation and after it, and judges what the mutation shows."""

from __future__ import annotations

import re
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence
from enum import Enum

from tests.mutations.mutation import Mutation
from tests.mutations.tree import HarnessError, Tree


class Ending(Enum):
    """How a test ended."""

    PASSED = "passes"
    FAILED = "fails"
    HUNG = "runs out of its time"
    SKIPPED = "is skipped"
    BROKEN = "gives no result"  # it was not collected, its fixture failed, or the run was ended


class Verdict(Enum):
    """What a mutation shows of its tests."""

    CAUGHT = "caught"
    SURVIVED = "SURVIVED"
    UNKNOWN = "NO RESULT"
    SKIPPED = "skipped"


def verdict(tree: Tree, mutation: Mutation) -> tuple[Verdict, str]:
    """Return what a mutation shows, and where a test did not end as it must, which."""
    try:
        before = endings(tree, mutation)
        usual = (Ending.PASSED, Ending.SKIPPED)
        if wrong := [f"{test} {end.value} without it" for test, end in before.items() if end not in usual]:
            return Verdict.UNKNOWN, "; ".join(wrong)
        if Ending.PASSED not in before.values():
            return Verdict.SKIPPED, "the tests are skipped here"
        with tree.mutated(mutation):
            after = endings(tree, mutation)
    except HarnessError as error:
        return Verdict.UNKNOWN, str(error)
    fails = {Ending.FAILED, Ending.HUNG} if mutation.hangs else {Ending.FAILED}
    judged = {test: end for test, end in after.items() if before[test] is Ending.PASSED}
    wrong = [f"{test} {end.value}" for test, end in judged.items() if end not in fails]
    survived = Ending.PASSED in judged.values()
    return Verdict.SURVIVED if survived else Verdict.UNKNOWN if wrong else Verdict.CAUGHT, "; ".join(wrong)


def endings(tree: Tree, mutation: Mutation) -> dict[str, Ending]:
    """Run a mutation's tests on the copy as it is.

    Raises:
        HarnessError: the engine could not be built.
    """
    python = [test for test in mutation.tests if test.startswith("tests/")]
    native = [test for test in mutation.tests if not test.startswith("tests/")]
    if not mutation.is_native:
        return _python_endings(tree, python, mutation.seconds)
    with tree.built(mutation.tests):
        return _python_endings(tree, python, mutation.seconds) | {
            test: _native_ending(tree, test, mutation.seconds) for test in native
        }


def _python_endings(tree: Tree, tests: Sequence[str], seconds: float) -> dict[str, Ending]:
    if not tests:
        return {}
    report = tree.log.with_name("report.xml")
    report.unlink(missing_ok=True)
    options = ("-p", "no:cacheprovider", "-o", "junit_family=xunit1", f"--junit-xml={report}")
    tree.run([sys.executable, "-m", "pytest", *options, *tests], seconds)
    cases = list(ElementTree.parse(report).iter("testcase")) if report.exists() else []
    return {test: _ending([case for case in cases if _is_of(case, test)]) for test in tests}


def _is_of(case: ElementTree.Element, test: str) -> bool:
    path, _, name = test.partition("::")
    ran = case.get("name", "")
    return case.get("file") == path and (ran == name or ran.startswith(f"{name}["))


def _ending(cases: Sequence[ElementTree.Element]) -> Ending:
    """Return how a test ended that may have run with several parameters: as the first of them that did not pass."""
    seen = [_ending_of_case(case) for case in cases]
    order = (Ending.FAILED, Ending.HUNG, Ending.BROKEN, Ending.PASSED, Ending.SKIPPED)
    return next((ending for ending in order if ending in seen), Ending.BROKEN)


def _ending_of_case(case: ElementTree.Element) -> Ending:
    failure = case.find("failure")
    if failure is not None:
        timed_out = (failure.get("message") or "").startswith("Failed: Timeout ")
        return Ending.HUNG if timed_out else Ending.FAILED
    if case.find("error") is not None:
        return Ending.BROKEN
    return Ending.SKIPPED if case.find("skipped") is not None else Ending.PASSED


def _native_ending(tree: Tree, test: str, seconds: float) -> Ending:
    path, _, name = test.partition("::")
    case = re.search(rf'\{{"([^"]*)", {name}\}}', (tree.root / path).read_text())
    if case is None:
        return Ending.BROKEN
    done = tree.run(tree.program(test), seconds, SPARK_ESTIMATOR_TEST_CASE=case[1])
    if f"[ run ] {case[1]}\n" not in done.stdout:
        return Ending.BROKEN
    return {0: Ending.PASSED, 124: Ending.HUNG}.get(done.returncode, Ending.FAILED)
