"""The page of a training's run in a real MLflow server, as a browser shows it."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("mlflow.server", reason="MLflow is not installed")

import mlflow

from spark_estimator import TorchEstimator
from tests.scenarios.estimators.tracking_server import TrackingServer

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

BROWSER = shutil.which("chromium")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.skipif(BROWSER is None, reason="chromium is not installed"),
]


def opened(address: str, folder: Path, *flags: str) -> str:
    """What a browser without a window prints, once the page has made its requests."""
    command = [BROWSER or "", "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
    command += [f"--user-data-dir={folder / 'browser'}", "--window-size=1400,1100", "--virtual-time-budget=30000"]
    done = subprocess.run([*command, *flags, address], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def charts_of(page: str, folder: Path) -> str:
    """The text of the page of charts, which a busy machine does not always show in a browser's first attempt."""
    for _ in range(3):
        text = text_of(opened(f"{page}/model-metrics", folder, "--dump-dom"))
        if "train_loss" in text:
            break
    return text


def text_of(page: str) -> str:
    """The text of a page, without its tags."""
    return " ".join(re.sub(r"<[^>]*>", " ", re.sub(r"<(script|style).*?</\1>", " ", page, flags=re.DOTALL)).split())


def test_the_page_of_a_run(line: DataFrame, estimator: Callable[..., TorchEstimator], tmp_path: Path) -> None:
    server = TrackingServer(tmp_path)
    server.start()
    before = mlflow.get_tracking_uri()
    try:
        mlflow.set_tracking_uri(server.address)
        experiment = mlflow.set_experiment("page").experiment_id
        model = estimator(mlflow=True, epochs=3, validation=0.2, batch_size=16).fit(line)
        run = mlflow.MlflowClient().get_run(model.mlflow_run_id)
        page = f"{server.address}/#/experiments/{experiment}/runs/{run.info.run_id}"
        overview = text_of(opened(page, tmp_path, "--dump-dom"))
        for name in ("train_loss", "validation_loss"):
            assert name in overview and f"{run.data.metrics[name]:.6g}"[:6] in overview, overview
        for name in ("batch_size", "16", "epochs", "Finished", run.info.run_name):
            assert name in overview, overview
        charts = charts_of(page, tmp_path)
        assert "train_loss" in charts and "validation_loss" in charts, charts
        plot = opened(f"{page}/artifacts/plots/loss.png", tmp_path, "--dump-dom")
        assert "loss.png" in text_of(plot) and re.search(r"<img[^>]+(blob:|loss\.png)", plot), text_of(plot)
        for name, path in (("overview", ""), ("charts", "/model-metrics"), ("plot", "/artifacts/plots/loss.png")):
            picture = tmp_path / f"{name}.png"
            opened(page + path, tmp_path, f"--screenshot={picture}")
            assert picture.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n" and picture.stat().st_size > 20_000
    finally:
        mlflow.set_tracking_uri(before)
        server.stop()
