"""The source of a pretrained model: a folder, the Hugging Face Hub's cache, or an object; downloaded once per host."""

from __future__ import annotations

import contextlib
import copy
import hashlib
import json
import os
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import spark_estimator.torch as hvd
from spark_estimator.errors import DataError
from spark_estimator.estimators.persistence.folders import to_local_path
from spark_estimator.extensions.transformers.special_tokens import count_positions, get_max_tokens

#: How folders are read: not from the Hub, and no Python files, about which transformers would ask on the terminal.
LOCAL: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
#: What is needed of a model: no weights that are pickled, which could run code.
PATTERNS = ["*.safetensors", "*.json", "*.txt", "*.model", "*.jinja"]
# Of each place of a tensor that `Pretrained.compute_digest` reads.
_SAMPLED_BYTES = 64
_DEFAULT_LENGTH = 256


@dataclass(frozen=True)
class Pretrained:
    """A pretrained model; is sent to the ranks.

    Attributes:
        folder: that has its files; empty: `net` is the model itself.
        name: on the Hub; empty: it is none of the Hub's.
        revision: the commit that the driver has found, which all hosts use.
        net: a model of transformers.
    """

    folder: str = ""
    name: str = ""
    revision: str = ""
    net: Any = field(default=None, repr=False)

    @classmethod
    def from_parameter(cls, model: Any, revision: str = "") -> Pretrained:
        """Return the source that the estimator's parameter names, on the driver. A name of the Hub is downloaded if its
        cache lacks it.

        Args:
            revision: of a name of the Hub; empty: the newest that is there.

        Raises:
            TypeError: it is neither text nor a model of transformers.
            DataError: the folder or the name does not exist.
        """
        if isinstance(model, (str, os.PathLike)):
            text = os.fspath(model)
            folder = to_local_path(text)
            if folder.is_dir():
                if (folder / "adapter_config.json").exists():
                    raise DataError(
                        f"model={text!r} is an adapter of peft. Merge it with its base, by "
                        "PeftModel.from_pretrained(base, folder).merge_and_unload(), and pass the result."
                    )
                if not (folder / "config.json").exists():
                    raise DataError(
                        f"model={text!r} is a folder without config.json: it holds no model of transformers."
                    )
                return cls(str(folder.absolute()))
            if folder.is_absolute() or text.count("/") > 1 or ":" in text:
                raise DataError(f"model={text!r}: this folder is not on the driver.")
            snapshot = _download_snapshot(text, revision)
            return cls(snapshot, text, Path(snapshot).name)
        if not hasattr(model, "config") or not hasattr(model, "save_pretrained"):
            raise TypeError(
                "model must be a folder, a name on the Hugging Face Hub, or a model of transformers; got "
                f"{model!r:.200}."
            )
        return cls(net=model)

    def find_here(self) -> Pretrained:
        """Find the files as `find_on_hosts` does, without the other ranks, for a rank that may join them late: their
        downloads wait for each other by the locks of the Hub's cache.

        Raises:
            DataError: this host does not have the files.
        """
        if self.net is not None or Path(self.folder).is_dir():
            return self
        return replace(self, folder=self._fetch_folder())

    def find_on_hosts(self) -> Pretrained:
        """Return the source with this host's folder of the files. A collective: one rank of a host downloads what is
        missing.

        Raises:
            DataError: on all ranks; a host does not have the files. The text names it.
        """
        if self.net is not None:
            return self
        folder, problem = self.folder, ""
        if hvd.local_rank() == 0 and not Path(folder).is_dir():
            try:
                folder = self._fetch_folder()
            except DataError as error:
                problem = str(error)
        answers = hvd.allgather_object((hvd.cross_rank(), hvd.local_rank(), folder, problem), name="pretrained model")
        problems = [problem for *_, problem in answers if problem]
        if problems:
            raise DataError(problems[0])
        folder = next(path for host, local, path, _ in answers if (host, local) == (hvd.cross_rank(), 0))
        return replace(self, folder=folder)

    def _fetch_folder(self) -> str:
        host = socket.gethostname()
        if not self.name:
            raise DataError(
                f"the folder {self.folder} of the pretrained model is not on rank {hvd.rank()}'s host {host}. Put it "
                "where all hosts can read it, such as a Volume, or pass the model itself."
            )
        return _download_snapshot(self.name, self.revision, f"on rank {hvd.rank()}'s host {host}")

    def read_config(self) -> Any:
        """Return the model's config, without its numbers.

        Raises:
            DataError: the folder has none that transformers knows.
        """
        import transformers

        if self.net is not None:
            return self.net.config
        try:
            return transformers.AutoConfig.from_pretrained(self.folder, **LOCAL)
        except (OSError, ValueError, KeyError) as error:
            raise DataError(f"{self.folder}/config.json can't be read: {type(error).__name__}: {error}") from error

    def order_labels(self, labels: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return classes in the order in which the model's config names them; unchanged if it names others.

        The outputs of a trained head, and the config of an adapter's base, keep their meaning.
        """
        names = getattr(self.read_config(), "id2label", None) or {}
        position = {str(name): number for number, name in names.items()}
        if len(position) != len(names) or position.keys() != {str(label) for label in labels}:
            return labels
        return tuple(sorted(labels, key=lambda label: int(position[str(label)])))

    def get_max_tokens(self) -> int | None:
        """Return what the function `get_max_tokens` does, before the numbers are read."""
        import torch
        import transformers

        if self.net is not None:
            return get_max_tokens(self.net)
        config = self.read_config()
        try:
            with torch.device("meta"):
                net = transformers.AutoModel.from_config(config, trust_remote_code=False)
        except Exception:  # a model that needs its own code, for one; `read` gives the reason
            return count_positions(config)
        return get_max_tokens(net)

    def compute_digest(self) -> str:
        """Return a digest that distinguishes the pretrained files from others, in any folder; empty for an object.

        It is a SHA-256 of the config, of the tensors' names and shapes, and of a few numbers of each tensor: another
        training changes some of these, and they are read in milliseconds, however large the model is. The numbers of
        an object may be random in each program, and a resumed training replaces them.
        """
        if self.net is not None:
            return ""
        folder = Path(self.folder)
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        settings = {key: value for key, value in config.items() if key not in ("_name_or_path", "transformers_version")}
        result = hashlib.sha256(json.dumps(settings, sort_keys=True).encode())
        for file in sorted(folder.glob("*.safetensors")):
            _add_tensors(result, file)
        return result.hexdigest()[:16]

    def load(self, kind: str, **options: Any) -> Any:
        """Return the model from its files, whose code is not run; or a copy of the object.

        Args:
            kind: the class of transformers that loads it.
            options: of ``from_pretrained``.

        Raises:
            DataError: the files are not those of such a model.
        """
        return self.read(kind, **options)[0]

    def read(self, kind: str, **options: Any) -> tuple[Any, frozenset[str]]:
        """Return what `load` does, and the names of the parameters that the files do not have, which are random."""
        import transformers

        if self.net is not None:
            net = copy.deepcopy(self.net)
            return (net.to(options["dtype"]) if "dtype" in options else net), frozenset()
        try:
            net, report = getattr(transformers, kind).from_pretrained(
                self.folder, use_safetensors=True, output_loading_info=True, ignore_mismatched_sizes=True, **LOCAL,
                **options
            )  # fmt: skip
            # A head for another number of classes is replaced; nothing else is.
            replaced = {
                name for name, stored, expected in report["mismatched_keys"] if _is_head(stored, expected, options)
            }
            others = [key for key in report["mismatched_keys"] if key[0] not in replaced]
            if others:
                name, stored, expected = others[0]
                raise ValueError(f"{name} has the shape {tuple(stored)}, and the config asks for {tuple(expected)}")
            return net, frozenset(report["missing_keys"]) | replaced
        except (OSError, RuntimeError, ValueError, KeyError) as error:
            raise DataError(
                f"the model in {self.folder} can't be loaded by {kind}: {type(error).__name__}: {error}"
            ) from error


def _is_head(stored: Sequence[int], expected: Sequence[int], options: Mapping[str, Any]) -> bool:
    """Return whether a tensor differs from what the model needs in nothing but the number of classes."""
    return len(stored) == len(expected) and expected[0] == options.get("num_labels") and stored[1:] == expected[1:]


def choose_length(wanted: int | None, most: int | None, tokenizer: Any) -> int:
    """Return the number of tokens of a row.

    Args:
        wanted: the parameter; None: 256, or the most that the model or the tokenizer takes.
        most: that the model takes, by `get_max_tokens`.

    Raises:
        DataError: it is more than the model takes.
    """
    if wanted is None:
        limits = (most, getattr(tokenizer, "model_max_length", None))
        return int(min(_DEFAULT_LENGTH, *(number for number in limits if number is not None)))
    if most is not None and wanted > most:
        raise DataError(f"max_length={wanted} is more than the {most} tokens that the model takes.")
    return wanted


@contextlib.contextmanager
def silence_warnings() -> Iterator[None]:
    """Silence transformers' warnings of parameters that are new in a model that is loaded."""
    import transformers

    level = transformers.utils.logging.get_verbosity()
    transformers.utils.logging.set_verbosity_error()
    try:
        yield
    finally:
        transformers.utils.logging.set_verbosity(level)


def _add_tensors(result: Any, file: Path) -> None:
    """Add a file of safetensors to a digest: its header, and the bytes at three places of each tensor."""
    with file.open("rb") as stream:
        size = int.from_bytes(stream.read(8), "little")
        header = stream.read(size)
        result.update(header)
        for name, tensor in json.loads(header).items():
            if name == "__metadata__":
                continue
            first, end = tensor["data_offsets"]
            for offset in (first, (first + end) // 2, max(first, end - _SAMPLED_BYTES)):
                stream.seek(8 + size + offset)
                result.update(stream.read(min(_SAMPLED_BYTES, end - offset)))


def load_tokenizer(tokenizer: Any, model: Pretrained) -> Any:
    """Return the tokenizer of an estimator.

    Args:
        tokenizer: the parameter.

    Raises:
        DataError, ValueError, TypeError: there is none, or none that is fast.
    """
    import transformers

    if tokenizer is None and not model.folder:
        raise ValueError("tokenizer is required where model is an object: pass the tokenizer, or its folder.")
    if tokenizer is None or isinstance(tokenizer, (str, os.PathLike)):
        folder = model.folder if tokenizer is None else str(to_local_path(os.fspath(tokenizer)))
        try:
            tokenizer = transformers.AutoTokenizer.from_pretrained(folder, **LOCAL)
        except (OSError, ValueError, KeyError) as error:
            raise DataError(f"there is no tokenizer in {folder}: {type(error).__name__}: {error}") from error
    if not getattr(tokenizer, "is_fast", False):
        raise TypeError(
            "tokenizer must be a fast tokenizer of transformers (PreTrainedTokenizerFast); got "
            f"{type(tokenizer).__name__}."
        )
    return tokenizer


def _download_snapshot(name: str, revision: str = "", where: str = "on the driver") -> str:
    """Return the folder of a name of the Hub, from the cache if it is there."""
    from huggingface_hub import snapshot_download

    options: dict[str, Any] = {"revision": revision or None, "allow_patterns": PATTERNS}
    attempts: list[Callable[[], str]] = [
        lambda: snapshot_download(name, local_files_only=True, **options),
        lambda: snapshot_download(name, **options),
    ]
    problem: Exception | None = None
    for attempt in attempts:
        try:
            folder = attempt()
        except (OSError, ValueError) as error:  # the Hub's errors are among them
            problem = error
            continue
        if (Path(folder) / "config.json").exists():
            return folder
    raise DataError(
        f"model={name!r} is neither a folder nor in the Hugging Face Hub's cache {where}, and it can't be downloaded: "
        f"{type(problem).__name__}: {problem}"
    ) from problem
