"""The backend of the package: Horovod's, with another `run`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import cloudpickle
from horovod.spark.common.backend import SparkBackend


class ClientBackend(SparkBackend):  # type: ignore[misc]  # the aliases have no types
    """Passes the function on as bytes, as a package does that prepares the process before it is unpickled."""

    def run(
        self,
        fn: Callable[..., Any],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        env: Mapping[str, str] | None = None,
    ) -> Any:
        def unpacked(content: bytes, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
            import cloudpickle

            return cloudpickle.loads(content)(*args, **kwargs)

        serialized = cloudpickle.dumps(fn)
        return super().run(unpacked, args=(serialized, args, kwargs or {}), env=dict(env or {}))


def backend_for(backend: Any, num_proc: int | None, verbose: int) -> Any:
    """What trains: the user's backend, or the package's."""
    if backend is None:
        return ClientBackend(num_proc, verbose=verbose)
    if num_proc is not None:
        raise ValueError("At most one of backend and num_proc may be specified")
    return backend
