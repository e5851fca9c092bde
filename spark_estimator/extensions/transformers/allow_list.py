"""What the files of a saved `TransformersModel` may hold when they are read without trust.

transformers and peft read more than numbers: their JSON names modules to import, kernels of the Hub, and other folders,
and they take a pickled file where they find no other. So they are given a private folder with those files alone that
are known, and settings by which something else would be loaded are refused.
"""

from __future__ import annotations

import fnmatch
import inspect
import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from spark_estimator.errors import DataError
from spark_estimator.estimators.persistence.folders import TRUST
from spark_estimator.estimators.persistence.manifest import Manifest
from spark_estimator.extensions.transformers.pretrained import PATTERNS

ADAPTER = "adapter_config.json"
_ADAPTER_NUMBERS = "adapter_model.safetensors"
_TEMPLATES = "additional_chat_templates"
#: Settings of a model's config by which transformers loads what is not in the folder.
_LOADING = (
    *("attn_implementation", "experts_implementation", "quantization_config", "transformers_weights"),
    *("trust_remote_code", "use_pretrained_backbone"),
)
#: Names of timm's models: before a colon it is where timm loads another one from.
_OF_TIMM = ("architecture", "backbone")
#: Implementations that transformers has itself.
_BUILT_IN = (None, "eager", "sdpa")
#: Settings of a LoRA adapter that hold names of modules of the base, and numbers; others must be peft's defaults.
_OF_LORA = {
    *("alpha_pattern", "auto_mapping", "base_model_name_or_path", "bias", "ensure_weight_tying", "exclude_modules"),
    "fan_in_fan_out",
    *("inference_mode", "init_lora_weights", "layer_replication", "layers_pattern", "layers_to_transform"),
    *("lora_alpha", "lora_bias", "lora_dropout", "modules_to_save", "peft_type", "peft_version", "r"),
    *("rank_pattern", "revision", "target_modules", "target_parameters", "task_type", "trainable_token_indices"),
    *("use_dora", "use_rslora"),
}


@contextmanager
def open_private_folder(manifest: Manifest, *, trust: bool) -> Iterator[Path]:
    """Yield a folder of this process alone, with the files that transformers or peft need: the bytes that were
    checked.

    Files of numbers, which can be large, are links.

    Args:
        trust: settings may name what is not in the folder.

    Raises:
        DataError: a file is damaged or missing, or reading the folder could run code. Also in place of a
            DataError of the block, as the folder would have no name in its text.
    """
    with tempfile.TemporaryDirectory() as private:
        for name in manifest.files:
            if not any(fnmatch.fnmatch(name, pattern) for pattern in PATTERNS):
                manifest.check_file(name)  # is not needed, and whole
            elif name.endswith(".safetensors"):
                os.symlink(manifest.check_file(name).absolute(), Path(private) / name)
            else:
                content = manifest.read_content(name)
                if not trust:
                    _check(name, content, manifest)
                (Path(private) / name).write_bytes(content)
        if manifest.has(ADAPTER) and not manifest.has(_ADAPTER_NUMBERS):
            raise DataError(f"{manifest.folder} is an adapter without {_ADAPTER_NUMBERS}.")
        for template in (manifest.folder / _TEMPLATES).glob("*.jinja"):
            (Path(private) / _TEMPLATES).mkdir(exist_ok=True)
            (Path(private) / _TEMPLATES / template.name).write_bytes(template.read_bytes())
        try:
            yield Path(private)
        except DataError as error:
            raise DataError(str(error).replace(private, str(manifest.folder))) from error


def _check(name: str, content: bytes, manifest: Manifest) -> None:
    if name not in ("config.json", "tokenizer_config.json", ADAPTER, "model.safetensors.index.json"):
        return
    try:
        config = json.loads(content)
        if not isinstance(config, dict):
            raise ValueError("it is no object")
        flaws = [*_find_adapter_flaws(config)] if name == ADAPTER else [*_find_flaws(config, manifest)]
    except (TypeError, ValueError, RecursionError) as error:
        raise DataError(f"{manifest.folder / name} cannot be read: {type(error).__name__}: {error}") from error
    if flaws:
        raise DataError(f"{manifest.folder / name} could have any code loaded: {flaws[0]}. Pass {TRUST}.")


def _find_flaws(config: dict[str, Any], manifest: Manifest) -> Iterator[str]:
    import transformers

    base = transformers.PreTrainedTokenizerBase
    kind = config.get("tokenizer_class")
    for name in (kind, str(kind).removesuffix("Fast")):
        tokenizer = getattr(transformers, str(name), base)
        if not (inspect.isclass(tokenizer) and issubclass(tokenizer, base)):
            yield f"its tokenizer_class is {kind!r}"
    for file in dict(config.get("weight_map") or {}).values():
        if not manifest.has(file):
            yield f"it names the file {file!r}"
    rest: list[Any] = [config]
    while rest:
        item = rest.pop()
        if isinstance(item, dict):
            for key, value in item.items():
                setting = str(key).removeprefix("_").removesuffix("_internal")
                if setting in _LOADING and value not in (_BUILT_IN if "implementation" in setting else (None, False)):
                    yield f"{key} is {str(value)[:100]!r}"
                # timm takes any argument from there, also the path of a pickled file (checkpoint_path).
                if (setting == "model_args" and value) or (setting in _OF_TIMM and ":" in str(value)):
                    yield f"{key} is {str(value)[:100]!r}"
            rest.extend(item.values())
        elif isinstance(item, list):
            rest.extend(item)


def _find_adapter_flaws(config: dict[str, Any]) -> Iterator[str]:
    import peft

    if config.get("peft_type") != "LORA":
        yield f"its peft_type is {config.get('peft_type')!r}, not 'LORA'"
    defaults = peft.LoraConfig().to_dict()
    for key, value in config.items():
        if key not in _OF_LORA and value and value != defaults.get(key):
            yield f"{key} is {str(value)[:100]!r}"
