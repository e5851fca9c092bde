"""Models that are divided among the ranks: FSDP2, checkpoints of `torch.distributed.checkpoint`, and generation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.scenarios.huggingface import tiny
from tests.scenarios.huggingface.rank_pool import RankPool
from tests.scenarios.huggingface.test_trainer import BACKENDS, assert_same


def tokens(step: int) -> torch.Tensor:
    return torch.randint(7, 32, (8, 12), generator=torch.Generator().manual_seed(step))


def sharded(model: Any) -> Any:
    """As the documentation of FSDP2 has it: each layer, then the rest."""
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("shard",))
    for layer in model.model.layers:
        fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def steps(model: Any, optimizer: Any, numbers: range, rank: int, size: int) -> None:
    for step in numbers:
        share = tokens(step).chunk(size)[rank]
        optimizer.zero_grad()
        model(input_ids=share, labels=share).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()


def whole(model: Any) -> dict[str, torch.Tensor]:
    """The weights of all ranks."""
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict

    return dict(get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True)))


def alone(numbers: range) -> dict[str, torch.Tensor]:
    model = tiny.causal()
    steps(model, torch.optim.AdamW(model.parameters(), lr=0.01, eps=1e-3), numbers, 0, 1)
    return {name: value.detach() for name, value in model.state_dict().items()}


@pytest.mark.parametrize("backend", BACKENDS)
def test_fsdp2_is_training_on_the_joint_batch(two_ranks: RankPool, tmp_path: Path, backend: str) -> None:
    def program(folder: str, backend: str) -> Any:
        import torch.distributed as dist

        if not dist.is_initialized():
            dist.init_process_group(backend)
        model = sharded(tiny.causal(seed=5 + dist.get_rank()))
        # The ranks began with different numbers; rank 0's hold.
        from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict

        start = tiny.causal().state_dict() if dist.get_rank() == 0 else {}
        set_model_state_dict(model, start, options=StateDictOptions(full_state_dict=True, broadcast_from_rank0=True))
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, eps=1e-3)
        steps(model, optimizer, range(4), dist.get_rank(), 2)
        held = sum(parameter.to_local().numel() for parameter in model.parameters())
        return held, whole(model)

    first, second = two_ranks.run(program, str(tmp_path), backend, backend)
    expected = alone(range(4))
    assert_same(first[1], expected)
    assert first[0] + second[0] == sum(value.numel() for value in expected.values())


def test_a_distributed_checkpoint_is_saved_and_loaded(two_ranks: RankPool, tmp_path: Path) -> None:
    def program(folder: str) -> Any:
        import torch.distributed as dist
        import torch.distributed.checkpoint as dcp
        from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

        def start(seed: int) -> tuple[Any, Any]:
            model = sharded(tiny.causal(seed))
            return model, torch.optim.AdamW(model.parameters(), lr=0.01, eps=1e-3)

        rank = dist.get_rank()
        model, optimizer = start(5)
        steps(model, optimizer, range(2), rank, 2)
        state = dict(zip(("model", "optimizer"), get_state_dict(model, optimizer), strict=True))
        dcp.save(state, checkpoint_id=f"{folder}/blocking")
        # Its thread has a separate group, as the training continues meanwhile.
        saving = dcp.async_save(state, checkpoint_id=f"{folder}/meanwhile", process_group=dist.new_group())
        steps(model, optimizer, range(2, 4), rank, 2)
        saving.result()
        results = [whole(model)]
        for name in ("blocking", "meanwhile"):
            other, its = start(9)
            read = dict(zip(("model", "optimizer"), get_state_dict(other, its), strict=True))
            dcp.load(read, checkpoint_id=f"{folder}/{name}")
            set_state_dict(other, its, model_state_dict=read["model"], optim_state_dict=read["optimizer"])
            steps(other, its, range(2, 4), rank, 2)
            results.append(whole(other))
        return results

    expected = alone(range(4))
    for results in two_ranks.run(program, str(tmp_path), "spark_estimator"):
        for result in results:
            if result:  # rank 0 has all of it
                assert_same(result, expected)
    # One process reads what two have written.
    from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

    dcp_to_torch_save(tmp_path / "blocking", tmp_path / "one.pt")
    assert_same(torch.load(tmp_path / "one.pt", weights_only=True)["model"], alone(range(2)))


@pytest.mark.slow
def test_tensor_parallel_layers_and_a_mesh_of_two_dimensions(two_ranks: RankPool, tmp_path: Path) -> None:
    def program(folder: str) -> Any:
        import torch.distributed as dist
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
        from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

        plans = {
            "mlp.up_proj": ColwiseParallel(),
            "mlp.gate_proj": ColwiseParallel(),
            "mlp.down_proj": RowwiseParallel(),
        }
        results = []
        for shape in ((1, 2), (2, 1)):
            mesh = init_device_mesh("cpu", shape, mesh_dim_names=("data", "tensor"))
            model = tiny.causal()
            for layer in model.model.layers:
                parallelize_module(layer, mesh["tensor"], plans)
                fully_shard(layer, mesh=mesh["data"])
            fully_shard(model, mesh=mesh["data"])
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            for step in range(2):
                share = tokens(step).chunk(shape[0])[mesh["data"].get_local_rank()]
                optimizer.zero_grad()
                model(input_ids=share, labels=share).loss.backward()
                optimizer.step()
            results.append({name: value.full_tensor() for name, value in model.state_dict().items()})
        mixed = torch.nn.Linear(4, 4)
        fully_shard(mixed, mesh=init_device_mesh("cpu", (2,)), mp_policy=MixedPrecisionPolicy(torch.bfloat16))
        mixed(torch.ones(2, 4)).sum().backward()
        assert mixed.weight.grad.full_tensor().tolist() == [[2.0] * 4] * 4
        dist.barrier()
        return results

    model = tiny.causal()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(2):
        optimizer.zero_grad()
        model(input_ids=tokens(step), labels=tokens(step)).loss.backward()
        optimizer.step()
    for results in two_ranks.run(program, str(tmp_path), "spark_estimator"):
        for result in results:
            assert_same(result, {name: value.detach() for name, value in model.state_dict().items()})


@pytest.mark.slow
def test_generation_with_texts_of_different_lengths(two_ranks: RankPool, tmp_path: Path) -> None:
    prompts = [[2, 8, 9], [2, 10], [2, 11, 12, 13], [2, 14], [2, 15]]

    def generated(model: Any, prompt: list[int], **options: Any) -> list[int]:
        model.eval()
        made = model.generate(torch.tensor([prompt]), max_new_tokens=6, do_sample=False, **options)
        return made[0].tolist()

    def program(folder: str) -> Any:
        from accelerate import PartialState
        from accelerate.utils import gather_object

        state = PartialState(cpu=True)
        with state.split_between_processes(prompts) as share:
            replicated = gather_object([generated(tiny.causal(), prompt) for prompt in share])
        # Ranks with a part of the weights continue until the last one has its text.
        share = prompts[: 1 + 2 * state.process_index]
        share += share[-1:] * (3 - len(share))
        divided = sharded(tiny.causal())
        return replicated, [generated(divided, prompt, synced_gpus=True) for prompt in share]

    expected = [generated(tiny.causal(), prompt) for prompt in prompts]
    first, second = two_ranks.run(program, str(tmp_path), "spark_estimator")
    assert first[0] == second[0] == expected
    assert first[1] == [expected[0]] * 3
    assert second[1] == expected[:3]
