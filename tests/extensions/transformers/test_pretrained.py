"""Folders, names of the Hub in its cache, and objects; ranks whose host does not have the files."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from spark_estimator import DataError
from spark_estimator.errors import NotInitializedError
from spark_estimator.extensions.transformers.pretrained import (
    Pretrained,
    choose_length,
    load_tokenizer,
    silence_warnings,
)
from tests.extensions.transformers.test_tokens import CAUSAL
from tests.scenarios.huggingface import tiny
from tests.torch.rank_pool import RankPool


def cached(cache: Path, folder: str, name: str, revision: str = "0" * 40) -> None:
    """A folder as the Hub's cache has it."""
    place = cache / f"models--{name.replace('/', '--')}"
    shutil.copytree(folder, place / "snapshots" / revision)
    (place / "refs").mkdir()
    (place / "refs" / "main").write_text(revision)


def test_a_name_of_the_hub_is_found_in_its_cache(
    causal_folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    cached(tmp_path, causal_folder, "zoo/animals")
    source = Pretrained.from_parameter("zoo/animals")
    assert (source.name, source.revision) == ("zoo/animals", "0" * 40)
    assert source.folder == str(tmp_path / "models--zoo--animals" / "snapshots" / ("0" * 40))
    net = source.load("AutoModelForCausalLM", dtype=torch.float32)
    torch.testing.assert_close(net.lm_head.weight, tiny.causal().lm_head.weight)
    with pytest.raises(
        DataError, match="model='zoo/plants' is neither a folder nor in the Hugging Face Hub's cache on"
    ):
        Pretrained.from_parameter("zoo/plants")


def test_a_digest_is_that_of_the_numbers_in_any_folder(causal_folder: str, tmp_path: Path) -> None:
    digest = Pretrained.from_parameter(causal_folder).compute_digest()
    shutil.copytree(causal_folder, tmp_path / "copy")
    assert Pretrained.from_parameter(str(tmp_path / "copy")).compute_digest() == digest
    for name, change in (
        ("seed", lambda net: tiny.causal(seed=6)),
        ("head", lambda net: net.lm_head.weight.data.mul_(2) is None or net),
        ("config", lambda net: net.config.update({"rms_norm_eps": 1e-3}) or net),
    ):
        change(tiny.causal()).save_pretrained(tmp_path / name)
        assert Pretrained.from_parameter(str(tmp_path / name)).compute_digest() != digest, name
    assert Pretrained.from_parameter(tiny.causal()).compute_digest() == ""


@pytest.mark.parametrize(
    ("model", "error", "message"),
    [
        ("/nowhere/model", DataError, "model='/nowhere/model': this folder is not on the driver"),
        (3, TypeError, "model must be a folder, a name on the Hugging Face Hub, or a model of transformers; got 3"),
    ],
)
def test_what_is_no_model(model: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        Pretrained.from_parameter(model)


def test_a_folder_without_a_model(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"is a folder without config\.json"):
        Pretrained.from_parameter(str(tmp_path))
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(DataError, match="can't be loaded by AutoModelForCausalLM"):
        Pretrained.from_parameter(str(tmp_path)).load("AutoModelForCausalLM")


def test_weights_that_are_pickled_are_not_read(tmp_path: Path) -> None:
    model = tiny.causal()
    model.config.save_pretrained(tmp_path)
    torch.save(model.state_dict(), tmp_path / "pytorch_model.bin")
    with pytest.raises(DataError, match="can't be loaded"):
        Pretrained.from_parameter(str(tmp_path)).load("AutoModelForCausalLM")


def test_tokenizers(causal_folder: str, tmp_path: Path) -> None:
    folder = Pretrained.from_parameter(causal_folder)
    assert load_tokenizer(None, folder).eos_token == "<end>"
    assert load_tokenizer(causal_folder, Pretrained.from_parameter(tiny.causal())).eos_token == "<end>"
    with pytest.raises(ValueError, match="tokenizer is required where model is an object"):
        load_tokenizer(None, Pretrained.from_parameter(tiny.causal()))
    with pytest.raises(TypeError, match="must be a fast tokenizer"):
        load_tokenizer(CAUSAL, folder)
    with pytest.raises(DataError, match="there is no tokenizer in"):
        load_tokenizer(str(tmp_path), folder)


def test_one_rank_of_a_host_downloads_and_all_hear_what_is_missing(causal_folder: str, tmp_path: Path) -> None:
    def program(rank: int, causal_folder: str, cache: str) -> Any:
        import os

        os.environ["HF_HUB_OFFLINE"] = "1"
        from pathlib import Path

        import huggingface_hub
        import huggingface_hub.constants

        from spark_estimator import DataError
        from spark_estimator.extensions.transformers.pretrained import Pretrained

        huggingface_hub.constants.HF_HUB_CACHE = cache
        calls = []
        download = huggingface_hub.snapshot_download

        def counting(*args: Any, **options: Any) -> str:
            calls.append(args)
            return str(download(*args, **options))

        huggingface_hub.snapshot_download = counting
        # The driver's cache was elsewhere.
        missing = Pretrained("/the/drivers/cache", "zoo/animals", "0" * 40)
        folder = missing.find_on_hosts().folder
        assert Pretrained(causal_folder).find_on_hosts().folder == causal_folder
        try:
            Pretrained("/only/on/the/driver").find_on_hosts()
        except DataError as error:
            return Path(folder).name, len(calls), str(error)

    cached(tmp_path, causal_folder, "zoo/animals")
    pool = RankPool(2)
    try:
        first, second = pool.run(program, causal_folder, str(tmp_path), timeout=120)
    finally:
        pool.close()
    assert (first[:2], second[:2]) == (("0" * 40, 1), ("0" * 40, 0))
    assert first[2] == second[2]
    assert "the folder /only/on/the/driver of the pretrained model is not on rank 0's host" in first[2]


def test_a_folder_s_length_is_known_before_its_numbers(causal_folder: str, tmp_path: Path) -> None:
    assert Pretrained(causal_folder).get_max_tokens() == 64
    (tmp_path / "adapter_config.json").write_text("{}")
    with pytest.raises(DataError, match=r"is an adapter of peft\. Merge it with its base"):
        Pretrained.from_parameter(str(tmp_path))


def test_a_rank_that_joins_late_asks_no_other(causal_folder: str) -> None:
    """In a process that is no rank, a collective raises an error."""
    with pytest.raises(NotInitializedError):
        Pretrained(causal_folder).find_on_hosts()
    assert Pretrained(causal_folder).find_here().folder == causal_folder


@pytest.mark.parametrize(
    ("wanted", "most", "of_tokenizer", "expected"),
    [(None, 64, 10**30, 64), (None, 1024, 10**30, 256), (None, 1024, 100, 100), (1000, 1024, 64, 1000)],
)
def test_the_length_of_rows_is_one_that_the_model_takes(
    wanted: int | None, most: int, of_tokenizer: int, expected: int
) -> None:
    words = tiny.tokenizer()
    words.model_max_length = of_tokenizer
    assert (
        choose_length(wanted, Pretrained(net=tiny.causal(max_position_embeddings=most)).get_max_tokens(), words)
        == expected
    )
    with pytest.raises(DataError, match="max_length=65 is more than the 64 tokens that the model takes"):
        choose_length(65, Pretrained(net=tiny.causal()).get_max_tokens(), words)


def test_new_parameters_are_reported_once(classifier_folder: str, caplog: pytest.LogCaptureFixture) -> None:
    import transformers

    transformers.utils.logging.enable_propagation()
    source = Pretrained.from_parameter(classifier_folder)
    with silence_warnings():
        source.load("AutoModelForTokenClassification")
        source.load("AutoModelForCausalLM")
    assert not caplog.records
    source.load("AutoModelForCausalLM")
    assert caplog.records
    transformers.utils.logging.disable_propagation()
