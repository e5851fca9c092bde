from __future__ import annotations

import fnmatch
import functools
import subprocess
import sys
import threading
import types
from collections.abc import Callable
from typing import Any

import pytest

from spark_estimator.errors import PicklingError
from spark_estimator.launch.job.pickling import describe_function, dump_function, dump_value, load_values

pytestmark = pytest.mark.usefixtures("functions_travel_by_value")


lock = threading.Lock()
fine = {"a": [1, 2, 3]}
deep = {"numbers": [1, 2], "parts": [{"guard": lock}]}


class Model:
    def __init__(self) -> None:
        self.weights = [1.0] * 1000
        self.logger = {"stream": [sys.stdout, threading.Lock()]}

    def fit(self) -> None: ...


class Slotted:
    __slots__ = ("inner", "unset")

    def __init__(self) -> None:
        self.inner = lock


def helper() -> Any:
    return deep


def refusal(function: Callable[..., Any], **kwargs: Any) -> str:
    with pytest.raises(PicklingError) as caught:
        dump_function(function, (), kwargs)
    return str(caught.value)


def test_what_can_travel_does() -> None:
    [(function, args, kwargs)] = load_values([dump_function(lambda x: (x, fine), (), {"x": 1})], "f()")
    assert function(*args, **kwargs) == (1, fine)


def test_a_global() -> None:
    def train() -> Any:
        return fine, lock

    text = refusal(train)
    assert text.startswith("train() uses the global 'lock' (type _thread.lock), which cannot be pickled (TypeError: ")
    assert text.splitlines()[0].endswith("To fix it: create it inside train().")


def test_a_global_of_an_inner_function() -> None:
    def train() -> Any:
        return [lock for _ in range(3)], (lambda: lock)

    assert "train() uses the global 'lock'" in refusal(train)


def test_a_variable_of_the_function_around() -> None:
    stream = (number for number in range(3))

    def train() -> Any:
        return stream

    text = refusal(train)
    assert "train() uses the variable 'stream' of the function around it (type generator), which cannot" in text
    assert "pass a list" in text


def test_the_way_through_other_functions_and_containers() -> None:
    def train() -> Any:
        return helper()

    assert refusal(train).startswith(
        "train() uses the global 'helper' (type function), which uses the global 'deep' (type dict), "
        "whose ['parts'][0]['guard'] (type _thread.lock) cannot be pickled"
    )


def test_an_argument_and_its_attributes() -> None:
    def train(model: Model) -> None: ...

    text = refusal(train, model=Model())
    assert text.startswith(
        "train() receives the argument 'model' (type tests.launch.job.test_pickling.Model), whose .logger["
    )
    assert "cannot be pickled" in text


def test_an_attribute_in_a_slot() -> None:
    def train(model: Slotted) -> None: ...

    assert "whose .inner (type _thread.lock) cannot be pickled" in refusal(train, model=Slotted())


def test_a_default() -> None:
    def train(a: int, b: Any = lock, *, c: Any = fine) -> None: ...

    assert "train() has a default for 'b' (type _thread.lock), which cannot" in refusal(train)


def test_a_method() -> None:
    assert "fit() is a method of a " in refusal(Model().fit)


def test_a_partial() -> None:
    def train(a: Any) -> None: ...

    bound = functools.partial(train, a=lock)
    assert describe_function(bound) == "train()"
    assert "train() receives the argument 'a' (type _thread.lock), which cannot" in refusal(bound)


def test_a_thing_that_refuses_by_itself() -> None:
    class Session:
        def __reduce__(self) -> Any:
            raise RuntimeError("sessions stay on the driver")

    session = Session()

    def train() -> Any:
        return session

    text = refusal(train)
    assert "train() uses the variable 'session'" in text and "sessions stay on the driver" in text


def test_a_spark_session(spark: Any) -> None:
    def train() -> Any:
        return spark.range(3)

    text = refusal(train)
    assert "train() uses the variable 'spark'" in text
    assert "exist on the driver only" in text
    assert "create it inside" not in text


def test_an_accumulator(spark: Any) -> None:
    counter = spark.sparkContext.accumulator(0)

    def train() -> None:
        counter.add(1)

    dump_value("the rows", train, for_tasks=True)  # where it counts
    text = refusal(train)
    assert "train() uses the variable 'counter'" in text and "nothing is added to an accumulator" in text
    assert "To fix it: return the number from train(), or add up the ranks' numbers by hvd.allreduce." in text


@functools.lru_cache(maxsize=3, typed=True)
def fibonacci(number: int) -> int:
    return number if number < 2 else fibonacci(number - 1) + fibonacci(number - 2)


def test_a_function_with_a_cache() -> None:
    """Python pickles it by its name alone, which no rank has."""
    fibonacci(9)
    pickled = dump_function(lambda number: (fibonacci(number), fibonacci), (10,), {})
    # Ranks have another module of this name, or none.
    loaded = subprocess.run(
        [sys.executable, "-c", LOADED], input=pickled, capture_output=True, timeout=60, check=True, text=False
    )
    assert loaded.stdout.decode().strip() == "55 {'maxsize': 3, 'typed': True}"


LOADED = """
import pickle, sys
function, args, kwargs = pickle.load(sys.stdin.buffer)
value, cached = function(*args, **kwargs)
print(value, cached.cache_parameters())
"""


def test_a_function_with_a_cache_of_an_installed_module_is_the_module_s() -> None:
    compiled = fnmatch._compile_pattern  # type: ignore[attr-defined]
    [(function, _, _)] = load_values([dump_function(lambda: compiled, (), {})], "f()")
    assert function() is compiled


def test_no_module_is_asked_for_a_function_that_has_none() -> None:
    """Livy runs cells by exec in a dict without ``__name__``; a lazy module imports what it is asked for."""

    class Lazy(types.ModuleType):
        def __getattr__(self, name: str) -> Any:
            raise SystemExit(f"asked for {name}")

    cell: dict[str, Any] = {}
    exec("def helper(): return 3\ndef train(): return helper()", cell)
    sys.modules["lazy_module_of_a_test"] = Lazy("lazy_module_of_a_test")
    try:
        pickled = dump_function(cell["train"], (), {})
    finally:
        del sys.modules["lazy_module_of_a_test"]
    [(function, _, _)] = load_values([pickled], "f()")
    assert cell["train"].__module__ is None and function() == 3


def test_a_cache_s_function_that_cannot_be_pickled() -> None:
    @functools.cache
    def cached() -> Any:
        return lock

    def train() -> Any:
        return cached()

    assert "uses the variable 'cached' of the function around it (type functools._lru_cache_wrapper), which calls" in (
        refusal(train)
    )


def test_a_thing_that_holds_itself() -> None:
    ring: dict[str, Any] = {"lock": lock}
    ring["self"] = ring

    def train() -> Any:
        return ring

    assert "whose ['lock'] (type _thread.lock) cannot be pickled" in refusal(train)


def test_what_is_no_function() -> None:
    with pytest.raises(TypeError, match="needs the function to run on every rank, not 3 of type int"):
        dump_function(3, (), {})  # type: ignore[arg-type]
