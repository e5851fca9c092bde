"""Accelerate, unchanged, on two ranks: its loop, uneven evaluation, checkpoints, and what it does with objects."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.scenarios.huggingface import tiny
from tests.scenarios.huggingface.rank_pool import RankPool
from tests.scenarios.huggingface.test_trainer import BACKENDS, assert_same, weights


def loader(rows: list[dict[str, Any]], size: int) -> Any:
    from torch.utils.data import DataLoader

    words = tiny.tokenizer()

    def batch(some: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        encoded = words([row["text"] for row in some], padding="max_length", max_length=16, return_tensors="pt")
        return {**encoded, "labels": torch.tensor([row["label"] for row in some])}

    return DataLoader(rows, batch_size=size, collate_fn=batch)  # type: ignore[arg-type]


def loop(folder: str, accumulated: int = 1, decay: bool = True, **options: Any) -> dict[str, Any]:
    """The loop of Accelerate's own examples."""
    from accelerate import Accelerator
    from accelerate.utils import set_seed

    set_seed(3)
    accelerator = Accelerator(gradient_accumulation_steps=accumulated, **options)
    joint = 8 // accumulated
    size = joint if options else joint // accelerator.num_processes
    model = tiny.classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.LinearLR(
        optimizer, 0.3 if decay else 1.0, total_iters=8 * accelerator.num_processes
    )
    train, held = loader(tiny.sentences(40), size), loader(tiny.sentences(13, seed=1), 4)
    model, optimizer, train, held, schedule = accelerator.prepare(model, optimizer, train, held, schedule)
    for _ in range(2):
        model.train()
        for batch in train:
            with accelerator.accumulate(model):
                accelerator.backward(model(**batch).loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 0.5)
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
        accelerator.save_state(folder)
    model.eval()
    guesses, labels = [], []
    for batch in held:
        with torch.no_grad():
            scores = model(**batch).logits
        some, those = accelerator.gather_for_metrics((scores, batch["labels"]))
        guesses.append(some)
        labels.append(those)
    result = {
        "weights": weights(accelerator.unwrap_model(model)),
        "scores": torch.cat(guesses),
        "labels": torch.cat(labels).tolist(),
        "world": accelerator.num_processes,
    }
    accelerator.load_state(folder)
    assert_same(weights(accelerator.unwrap_model(model)), result["weights"], 0)
    accelerator.end_training()
    return result


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_loop_is_training_on_the_joint_batch(
    two_ranks: RankPool, alone: RankPool, tmp_path: Path, backend: str
) -> None:
    first, second = two_ranks.run(loop, str(tmp_path / "two"), backend)
    (single,) = alone.run(loop, str(tmp_path / "one"))
    assert (first["world"], single["world"]) == (2, 1)
    assert_same(first["weights"], single["weights"])
    assert_same(first["weights"], second["weights"], 0)
    # gather_for_metrics leaves out the rows that were added to make the last batches equal.
    assert first["labels"] == second["labels"] == single["labels"] == [row["label"] for row in tiny.sentences(13, 1)]
    torch.testing.assert_close(first["scores"], single["scores"], rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_accumulation_and_batches_that_rank_0_reads(two_ranks: RankPool, alone: RankPool, tmp_path: Path) -> None:
    def accumulating(folder: str) -> Any:
        return loop(folder, 2, decay=False)  # Accelerate steps the schedule for each part of a batch, too

    def dispatching(folder: str) -> Any:
        from accelerate import DataLoaderConfiguration

        config = DataLoaderConfiguration(dispatch_batches=True, split_batches=True)
        return loop(folder, decay=False, dataloader_config=config)

    def steady(folder: str) -> Any:
        return loop(folder, decay=False)

    (single,) = alone.run(steady, str(tmp_path / "one"))
    for program in (accumulating, dispatching):
        first, second = two_ranks.run(program, str(tmp_path / "two"), "spark_estimator")
        assert_same(first["weights"], second["weights"], 0)
        assert_same(first["weights"], single["weights"])
        assert first["labels"] == single["labels"]


def test_what_ranks_tell_one_another(two_ranks: RankPool, tmp_path: Path) -> None:
    def program(folder: str) -> Any:
        from accelerate import Accelerator
        from accelerate.utils import (
            broadcast,
            broadcast_object_list,
            gather,
            gather_object,
            pad_across_processes,
            reduce,
        )

        accelerator = Accelerator()
        rank = accelerator.process_index
        with accelerator.main_process_first():
            Path(folder, str(rank)).touch()
            seen = len(list(Path(folder).iterdir()))
        if rank == 1:
            accelerator.set_trigger()
        with accelerator.split_between_processes(list(range(5)), apply_padding=True) as share:
            shares = gather_object(share)
        result = [
            seen,
            accelerator.check_trigger(),
            shares,
            gather(torch.tensor([rank])).tolist(),
            pad_across_processes(torch.ones(1 + rank)).tolist(),
            broadcast(torch.tensor([rank + 7.0])).tolist(),
            broadcast_object_list([f"of rank {rank}"]),
            reduce(torch.tensor([rank + 1.0]), reduction="mean").tolist(),
            accelerator.gather({"deep": [torch.tensor(rank)]})["deep"][0].tolist(),
        ]
        accelerator.wait_for_everyone()
        return result

    first, second = two_ranks.run(program, str(tmp_path), "spark_estimator")
    assert first[1:4] == second[1:4] == [True, [0, 1, 2, 3, 4, 4], [0, 1]]
    assert (first[0], second[0], first[4], second[4]) == (1, 2, [1, 0], [1, 1])
    assert first[5:] == second[5:] == [[7.0], ["of rank 0"], [1.5], [0, 1]]


def test_another_group_in_the_same_process(two_ranks: RankPool, tmp_path: Path) -> None:
    def program(folder: str) -> Any:
        import torch.distributed as dist
        from accelerate import Accelerator

        results = []
        for backend in ("spark_estimator", "gloo", "spark_estimator"):
            if not dist.is_initialized():
                dist.init_process_group(backend)
            accelerator = Accelerator()
            model = accelerator.prepare(torch.nn.Linear(2, 1, bias=False))
            model(torch.full((1, 2), float(accelerator.process_index))).sum().backward()
            results.append((dist.get_backend(), model.module.weight.grad.tolist()))
            accelerator.end_training()  # which destroys it
            type(accelerator.state)._reset_state(reset_partial_state=True)
        return results

    expected = [(backend, [[0.5, 0.5]]) for backend in ("spark_estimator", "gloo", "spark_estimator")]
    assert two_ranks.run(program, str(tmp_path), "spark_estimator") == [expected] * 2
