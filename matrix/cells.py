"""The combinations of versions that are tried, oldest Spark first."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Cell:
    """One combination.

    Attributes:
        name: for the command line.
        python: its minor version, such as ``3.11``.
        pins: package -> version; other packages are the newest that the extras of ``pyproject.toml`` allow.
        connect: the distribution of Spark has a Connect server.
    """

    name: str
    python: str
    pins: dict[str, str] = field(default_factory=dict)
    connect: bool = True


def _cell(name: str, python: str, spark: str, *, connect: bool = True, **pins: str) -> Cell:
    return Cell(name, python, {"pyspark": spark, **pins}, connect)


# PyPI's Spark 3 has no Connect server; its jar comes from Maven.
CELLS = {
    cell.name: cell
    for cell in (
        _cell(
            "spark-3.4-oldest",
            "3.10",
            "3.4.4",
            connect=False,
            torch="2.6.0",
            numpy="1.26.4",
            pandas="2.0.3",
            pyarrow="14.0.1",
        ),
        _cell(
            "spark-3.4",
            "3.11",
            "3.4.4",
            connect=False,
            torch="2.13.0",
            numpy="1.26.4",
            pandas="2.2.3",
            pyarrow="16.1.0",
        ),
        _cell("spark-3.4-numpy-2", "3.11", "3.4.4", connect=False, torch="2.13.0", numpy="2.4.6", pandas="2.3.3"),
        _cell(
            "spark-3.5",
            "3.11",
            "3.5.9",
            connect=False,
            torch="2.13.0",
            numpy="1.26.4",
            pandas="2.2.3",
            pyarrow="14.0.2",
        ),
        _cell("spark-3.5-python-3.12", "3.12", "3.5.9", connect=False, torch="2.7.1", numpy="2.2.6", pandas="2.3.3"),
        _cell("spark-3.5-pandas-3", "3.11", "3.5.9", connect=False, torch="2.13.0", numpy="2.4.6", pandas="3.0.3"),
        _cell("spark-4.0", "3.11", "4.0.5", torch="2.13.0", numpy="1.26.4", pandas="2.2.3", pyarrow="14.0.2"),
        _cell("spark-4.1", "3.10", "4.1.4", torch="2.8.0", numpy="2.2.6", pandas="2.3.3", pyarrow="19.0.1"),
        _cell("spark-4.2", "3.11", "4.2.1", torch="2.14.1", numpy="2.4.6", pandas="2.3.3", pyarrow="22.0.0"),
        # PySpark 4.3 needs Python 3.11.
        _cell("spark-4.3-oldest", "3.11", "4.3.0", torch="2.6.0", numpy="1.26.4", pandas="2.2.3", pyarrow="18.0.0"),
        _cell("spark-4.3-pandas-3", "3.11", "4.3.0", torch="2.13.0", pandas="3.1.1"),
        _cell("spark-4.3-python-3.13", "3.13", "4.3.0"),
        _cell("spark-4.3-python-3.14", "3.14", "4.3.0"),
    )
}
