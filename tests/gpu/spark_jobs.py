"""Tries jobs, training and predictions of a Spark that schedules this machine's GPU.

``python -m tests.gpu.spark_jobs`` starts ``local-cluster`` with one executor of four cores, which has the first GPU.
It needs pyspark and Java. The exit code is 0 when all is right, and 1 when something is not.
"""

from __future__ import annotations

import functools
import itertools
import os
import stat
import statistics
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import pandas
import torch
from torch import nn

ROOT = Path(__file__).resolve().parents[2]
WIDTH = 64
ROUNDS = 3
FEW_ROWS = 400_000


class OnGpu(nn.MSELoss):
    """Raises an error in a rank that trains in host memory; the driver tries a model there."""

    def forward(self, input: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        import spark_estimator.torch as hvd

        if hvd.is_initialized() and input.device.type != "cuda":
            raise AssertionError(f"the model trains on {input.device}")
        return super().forward(input, target)


class ShowsDevice(nn.Module):
    """Returns what a network does, and a column that is 1 where it ran on a GPU."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.network(x)
        return torch.cat([output, output.new_full((len(output), 1), float(x.device.type == "cuda"))], 1)


def session(folder: Path) -> Any:
    """A Spark whose worker announces one GPU, which four tasks share."""
    from pyspark.sql import SparkSession

    script = folder / "gpus.sh"
    script.write_text("""#!/bin/sh\necho '{"name": "gpu", "addresses": ["0"]}'\n""")
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.executor.memory": "4g",
        "spark.sql.shuffle.partitions": "4",
        "spark.worker.resource.gpu.amount": "1",
        "spark.worker.resource.gpu.discoveryScript": str(script),
        "spark.executor.resource.gpu.amount": "1",
        "spark.task.resource.gpu.amount": "0.25",
        "spark.executorEnv.PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
    }
    builder = SparkSession.builder.master("local-cluster[1,4,6144]")
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def in_rank() -> dict[str, Any]:
    """What a rank sees, and a sum over GPU tensors."""
    import spark_estimator.torch as hvd

    hvd.init()
    device = torch.device("cuda", hvd.local_rank() % torch.cuda.device_count())
    torch.cuda.set_device(device)
    total = hvd.allreduce(torch.arange(1000.0, device=device) * (hvd.rank() + 1), op=hvd.Sum, name="sum")
    from spark_estimator.collectives import context

    return {
        "rank": hvd.rank(),
        "visible": os.environ.get("CUDA_VISIBLE_DEVICES"),
        "on": total.device.type,
        "sum": float(total.sum()),
        "way": context.engine().describe("gpu"),
    }


def ranks_share_a_gpu(spark: Any) -> None:
    """A HorovodRunner job of two ranks, whose tasks have a quarter of the GPU each."""
    import spark_estimator.spark
    from spark_estimator import HorovodRunner

    for size in (1, 2):
        results = spark_estimator.spark.run(in_rank, num_proc=size, verbose=0)
        print(f"    {results}")
        expected = 499500.0 * sum(range(1, size + 1))
        assert [result["sum"] for result in results] == [expected] * size
        assert all(result["on"] == "cuda" and result["visible"] for result in results)
    assert HorovodRunner(np=2).run(in_rank)["sum"] == 499500.0 * 3


def a_rank_has_the_whole_gpu(spark: Any) -> None:
    """One rank by ``gpusPerRank``, in a session whose tasks have quarters."""
    import spark_estimator.spark

    spark.conf.set("spark.spark_estimator.gpusPerRank", "1")
    try:
        [result] = spark_estimator.spark.run(in_rank, num_proc=1, verbose=0)
    finally:
        spark.conf.unset("spark.spark_estimator.gpusPerRank")
    print(f"    {result}")
    assert result["on"] == "cuda"


def elastic(spark: Any) -> None:
    """An elastic job: its ranks have the GPU that Spark gave their tasks."""
    import spark_estimator.spark

    results = spark_estimator.spark.run_elastic(in_rank, num_proc=2, min_num_proc=1, verbose=0)
    print(f"    {results}")
    assert [result["sum"] for result in results] == [499500.0 * 3] * 2


def distributor(spark: Any) -> None:
    """An unchanged program of TorchDistributor: DDP over NCCL, in a rank that has the whole GPU."""
    from spark_estimator import TorchDistributor

    spark.conf.set("spark.spark_estimator.gpusPerRank", "1")
    try:
        value = TorchDistributor(num_processes=1, local_mode=False, use_gpu=True).run(with_ddp)
    finally:
        spark.conf.unset("spark.spark_estimator.gpusPerRank")
    print(f"    {value}")
    assert value[0] == "nccl"


def with_ddp() -> tuple[str, float]:
    """One step of DDP."""
    import torch.distributed as dist

    dist.init_process_group("nccl")
    torch.cuda.set_device(0)
    torch.manual_seed(0)
    model = nn.parallel.DistributedDataParallel(nn.Linear(4, 1).cuda(), device_ids=[0])
    loss = model(torch.ones(8, 4, device="cuda")).mean()
    loss.backward()
    backend, value = str(dist.get_backend()), float(loss.detach())
    dist.destroy_process_group()
    return backend, value


def rows(count: int) -> pandas.DataFrame:
    """A regression: x is WIDTH numbers, y the sine of a weighted sum."""
    random = numpy.random.default_rng(0)
    x = random.standard_normal((count, WIDTH), numpy.float32)
    y = numpy.sin(x @ (numpy.arange(WIDTH, dtype=numpy.float32) / WIDTH / 4))
    return pandas.DataFrame({"x": list(x), "y": y.astype(numpy.float32)})


def network() -> nn.Module:
    torch.manual_seed(5)
    return nn.Sequential(nn.Linear(WIDTH, 128), nn.GELU(), nn.Linear(128, 1))


@functools.cache
def frame(spark: Any) -> Any:
    return spark.createDataFrame(rows(20_000), schema="x array<float>, y float").repartition(8).cache()


def outputs_of(model: Any, rows: Any) -> dict[tuple[float, ...], Any]:
    """The predictions, by the first numbers of a row."""
    return {tuple(row.x[:3]): row.y__output for row in model.transform(rows).collect()}


def estimator(spark: Any) -> None:
    """TorchEstimator with two ranks on the GPU: the losses of the CPU. Then predictions, on the GPU and the CPU."""
    from spark_estimator import TorchEstimator

    models = {}
    for use_gpu, precision in ((True, None), (False, None), (True, "bf16")):
        model = network()
        began = time.monotonic()
        fitted = TorchEstimator(
            num_proc=2,
            model=model,
            optimizer=torch.optim.Adam(model.parameters(), 1e-3),
            loss=OnGpu() if use_gpu else nn.MSELoss(),
            feature_cols=["x"],
            label_cols=["y"],
            batch_size=256,
            epochs=3,
            random_seed=1,
            validation=0.1,
            use_gpu=use_gpu,
            verbose=0,
            mixed_precision=precision,
        ).fit(frame(spark))
        losses = fitted.getHistory()
        print(f"    use_gpu={use_gpu}: {time.monotonic() - began:.1f} s, {losses[-1]}")
        models[use_gpu, precision] = fitted
    on_gpu, on_cpu = (models[use_gpu, None].getHistory() for use_gpu in (True, False))
    for ours, expected in zip(on_gpu, on_cpu, strict=True):
        assert numpy.isclose(ours["train"]["loss"], expected["train"]["loss"], rtol=1e-4), (ours, expected)
    half = models[True, "bf16"].getHistory()[-1]["train"]["loss"]
    assert numpy.isclose(half, on_cpu[-1]["train"]["loss"], rtol=3e-2), (half, on_cpu[-1])
    fitted = models[True, None]
    predicted = {
        device: outputs_of(fitted.copy().setInferenceDevice(device), frame(spark)) for device in ("auto", "cuda", "cpu")
    }
    for device in ("auto", "cuda"):
        worst = max(abs(predicted[device][key] - value) for key, value in predicted["cpu"].items())
        print(f"    inference_device={device}: {len(predicted[device])} rows, at most {worst:.1e} from the CPU")
        assert worst < 1e-3


def torch_model(net: nn.Module, outputs: int) -> Any:
    from spark_estimator import TorchModel
    from spark_estimator.data.fields import Field

    return TorchModel(
        model=net.eval(),
        inputs=[Field(("x",), ("c0",), (WIDTH,), "float32", (WIDTH,))],
        outputs=[outputs],
        label_types=["float"],
        feature_columns=["x"],
        label_columns=["y"],
        batch_size=4096,
    )


def tasks_share_the_gpu(spark: Any) -> None:
    """Four tasks at a time predict on one GPU, in full precision, bf16 and fp16."""
    model = torch_model(ShowsDevice(network()), 2)
    expected = outputs_of(model.setInferenceDevice("cpu"), frame(spark))
    assert {output[1] for output in expected.values()} == {0.0}
    for precision, tolerance in ((None, 1e-4), ("bf16", 3e-2), ("fp16", 5e-3)):
        model.setInferenceDevice("auto").setInferencePrecision(precision)
        outputs = outputs_of(model, frame(spark))
        assert {output[1] for output in outputs.values()} == {1.0}, "not on a GPU"
        worst = max(abs(output[0] - expected[key][0]) for key, output in outputs.items())
        print(f"    precision {precision}: at most {worst:.1e} from the CPU")
        assert worst < tolerance


def transformers(spark: Any) -> None:
    """TransformersEstimator fine-tunes a classifier with two ranks on the GPU, and classifies there."""
    import tokenizers
    from transformers import BertConfig, BertForSequenceClassification, PreTrainedTokenizerFast

    from spark_estimator import TransformersEstimator

    words = ["[PAD]", "[UNK]", "good", "fine", "bad", "poor", "film", "the", "is", "was"]
    raw = tokenizers.Tokenizer(tokenizers.models.WordLevel(dict(zip(words, itertools.count(), strict=False)), "[UNK]"))
    raw.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=raw, pad_token="[PAD]", unk_token="[UNK]")
    random = numpy.random.default_rng(2)
    labels = random.integers(0, 2, 2000)
    texts = [
        f"the film {random.choice(['is', 'was'])} {random.choice(['bad', 'poor'] if not label else ['good', 'fine'])}"
        for label in labels
    ]
    texts_frame = spark.createDataFrame(pandas.DataFrame({"text": texts, "label": labels})).repartition(4)
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(words),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        num_labels=2,
    )
    fitted = TransformersEstimator(
        num_proc=2,
        model=BertForSequenceClassification(config),
        tokenizer=tokenizer,
        label_col="label",
        epochs=3,
        batch_size=32,
        learning_rate=1e-3,
        verbose=0,
    ).fit(texts_frame)
    print(f"    {fitted.getHistory()[-1]}")
    for device in ("cuda", "cpu"):
        predicted = fitted.copy().setInferenceDevice(device).transform(texts_frame)
        rows_ = predicted.collect()
        right = statistics.fmean(row.label == row.label__output for row in rows_)
        print(f"    {device}: accuracy {right:.3f}; {rows_[0]}")
        assert right > 0.95


def rates(spark: Any) -> None:
    """Rows/s of a network of 64, 2048, 2048 and 1 units: ours, and ``predict_batch_udf`` on the GPU."""
    from pyspark.ml.functions import predict_batch_udf
    from pyspark.sql import functions
    from pyspark.sql.types import FloatType

    torch.manual_seed(3)
    net = nn.Sequential(nn.Linear(WIDTH, 2048), nn.ReLU(), nn.Linear(2048, 2048), nn.ReLU(), nn.Linear(2048, 1)).eval()

    def make_predict() -> Callable[[Any], Any]:
        model = net.to("cuda")

        def predict(inputs: Any) -> Any:
            with torch.inference_mode():
                return model(torch.from_numpy(inputs).to("cuda")).cpu().numpy().reshape(-1)

        return predict

    batched = predict_batch_udf(make_predict, return_type=FloatType(), batch_size=4096, input_tensor_shapes=[[WIDTH]])
    on_cpu, on_gpu, in_bf16 = (torch_model(net, 1).setInferenceDevice(device) for device in ("cpu", "auto", "auto"))
    in_bf16.setInferencePrecision("bf16")

    def mean(predicted: Any, name: str) -> float:
        return float(predicted.agg(functions.avg(name)).first()[0])

    def predict_by_spark(rows: Any) -> Any:
        return rows.select(batched("x").alias("y__output"))

    ways: dict[str, Callable[[Any], Any]] = {
        "ours, cuda": on_gpu.transform,
        "predict_batch_udf, cuda": predict_by_spark,
        "ours, cuda bf16": in_bf16.transform,
    }
    columns = [functions.rand(seed).cast("float") for seed in range(WIDTH)]
    # A job has a fixed time, which many rows hide.
    for count in (FEW_ROWS, 8 * FEW_ROWS):
        many = spark.range(count, numPartitions=8).select(functions.array(*columns).alias("x")).cache()
        assert many.count() == count
        measured = ways | {"ours, cpu": on_cpu.transform} if count == FEW_ROWS else ways
        seconds: dict[str, list[float]] = {name: [] for name in measured}
        means: dict[str, float] = {}
        for number in range(ROUNDS + 1):
            for name, transform in measured.items():
                began = time.monotonic()
                means[name] = mean(transform(many), "y__output")
                if number:
                    seconds[name].append(time.monotonic() - began)
        print(f"    {count:,} rows")
        for name, times in seconds.items():
            print(f"    {name:26}{count / statistics.median(times):12,.0f} rows/s   mean {means[name]:.6f}")
        expected = means["predict_batch_udf, cuda"]
        assert all(abs(value - expected) < 1e-2 * abs(expected) + 1e-3 for value in means.values())
        many.unpersist()


CHECKS: tuple[Callable[[Any], None], ...] = (
    ranks_share_a_gpu,
    a_rank_has_the_whole_gpu,
    elastic,
    distributor,
    estimator,
    tasks_share_the_gpu,
    transformers,
    rates,
)


def main() -> int:
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        spark = session(Path(folder))
        for check in CHECKS:
            if not any(word in check.__name__ for word in sys.argv[1:] or [""]):
                continue
            began = time.monotonic()
            try:
                check(spark)
                state = "ok"
            except Exception:
                traceback.print_exc()
                state = "FAILED"
                failed += 1
            print(f"  {state:<7} {check.__name__} ({time.monotonic() - began:.1f} s)", flush=True)
        spark.stop()
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
