"""Pretrained models in folders, with random numbers, and DataFrames of texts that they can learn."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("peft")

from tests.estimators.conftest import marker
from tests.scenarios.huggingface import tiny

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["marker"]

os.environ.setdefault("HF_HUB_OFFLINE", "1")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "transformers" in item.path.parts:
            item.add_marker(pytest.mark.timeout(300))  # the ranks and Spark's workers import much


def saved(folder: Path, model: Any) -> str:
    model.save_pretrained(folder)
    tiny.tokenizer().save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="session")
def classifier_folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return saved(tmp_path_factory.mktemp("classifier"), tiny.classifier())


@pytest.fixture(scope="session")
def causal_folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return saved(tmp_path_factory.mktemp("causal"), tiny.causal())


@pytest.fixture(scope="session")
def reviews(spark: SparkSession) -> DataFrame:
    """Columns text, kind ("bad" or "good") and held."""
    rows = [
        (row["text"], "good" if row["label"] else "bad", number % 5 == 0)
        for number, row in enumerate(tiny.sentences(200))
    ]
    return spark.createDataFrame(rows, "text string, kind string, held boolean").cache()


@pytest.fixture(scope="session")
def chats(spark: SparkSession) -> DataFrame:
    """A column text with questions and their answers, and a column answer."""
    rows = [(row["messages"], row["messages"][-1]["content"]) for row in tiny.chats(200)]
    return spark.createDataFrame(rows, "text array<struct<role:string,content:string>>, answer string").cache()
