"""Where CUDA and NCCL are searched, and what the engine reports on them; on any machine, with libraries made here."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import spark_estimator.collectives.gpu_libraries as module
from spark_estimator import _native
from spark_estimator.collectives.gpu_libraries import (
    NcclFacts,
    describe_gpu_paths,
    find_gpu_libraries,
    find_libraries_for_engine,
    format_cuda_version,
    format_nccl_version,
    probe_cuda,
    probe_nccl,
)
from spark_estimator.env import Settings


@pytest.fixture
def wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], str]]:
    """Writes a file of one of NVIDIA's wheels; returns its path."""
    monkeypatch.syspath_prepend(str(tmp_path))
    known = sys.modules.pop("nvidia", None)

    def add(name: str) -> str:
        path = tmp_path / "nvidia" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        importlib.invalidate_caches()
        return str(path)

    yield add
    if known is not None:
        sys.modules["nvidia"] = known


def test_the_user_s_path_then_what_is_loaded_then_wheels(tmp_path: Path, wheels: Callable[[str], str]) -> None:
    maps = tmp_path / "maps"
    assert find_gpu_libraries(Settings(), maps) == ("", "")  # the file does not exist
    maps.write_text("7f0-7f1 r-xp 00000000 08:01 7  /usr/lib/libc.so.6\n7f0-7f1 rw-p 00000000 00:00 0\n")
    older, nccl = wheels("cuda_runtime/lib/libcudart.so.12"), wheels("nccl/lib/libnccl.so.2")
    assert find_gpu_libraries(Settings(), maps) == (older, nccl)
    newer = wheels("cu13/lib/libcudart.so.13")
    assert find_gpu_libraries(Settings(), maps) == (newer, nccl)
    loaded = "/opt/with space/libcudart.so.12"
    maps.write_text(f"7f0-7f1 r--p 00000000 08:01 9  {loaded}\n7f0-7f1 r-xp 0 08:01 9  /opt/libnccl.so.2.27\n")
    assert find_gpu_libraries(Settings(), maps) == (loaded, nccl)
    settings = Settings.read({f"SPARK_ESTIMATOR_{name}_LIBRARY": f"/a/{name}.so" for name in ("CUDA", "NCCL")})
    assert find_gpu_libraries(settings, maps) == ("/a/CUDA.so", "/a/NCCL.so")
    with pytest.raises(ValueError, match="absolute path"):
        Settings.read({"SPARK_ESTIMATOR_NCCL_LIBRARY": "libnccl.so"})


def test_nothing_is_looked_for_where_there_is_no_driver(
    tmp_path: Path, wheels: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    there = wheels("cuda_runtime/lib/libcudart.so.12")
    driver = tmp_path / "driver"
    monkeypatch.setattr(module, "_TRACES_OF_A_DRIVER", (str(driver),))
    monkeypatch.setattr(
        module, "_list_loaded", lambda maps: []
    )  # another test may have opened this machine's libraries
    assert find_libraries_for_engine(Settings()) == ("", "")
    settings = Settings(nccl_library="/a/nccl.so")
    assert find_libraries_for_engine(settings) == ("", "/a/nccl.so")
    driver.touch()
    assert find_libraries_for_engine(settings) == (there, "/a/nccl.so")
    assert find_libraries_for_engine(Settings(gpu_operations="copy")) == ("", "")


def test_what_is_not_there_is_told_with_its_package() -> None:
    cuda, nccl = probe_cuda("/nowhere/libcudart.so.12"), probe_nccl("/nowhere/libnccl.so.2")
    assert cuda[:3] == (0, 0, 0) and "/nowhere/libcudart.so.12" in cuda.trouble
    assert "nvidia-cuda-runtime" in cuda.trouble
    assert nccl.version == 0 and "/nowhere/libnccl.so.2" in nccl.trouble and "nvidia-nccl" in nccl.trouble
    here = probe_cuda(sys.executable)
    assert here.runtime == 0 and here.trouble


def test_what_is_there_is_asked(fakes: dict[str, str]) -> None:
    cuda = probe_cuda(fakes["SPARK_ESTIMATOR_CUDA_LIBRARY"])
    nccl = probe_nccl(fakes["SPARK_ESTIMATOR_NCCL_LIBRARY"])
    assert cuda.trouble == "" and cuda.runtime >= 12000 and cuda.driver >= cuda.runtime and cuda.devices > 0
    assert nccl.trouble == "" and nccl.version >= 21400
    assert probe_nccl(fakes["SPARK_ESTIMATOR_CUDA_LIBRARY"]).trouble


def test_what_scripts_ask(fakes: dict[str, str]) -> None:
    """``hvd.nccl_built()`` and ``cuda_built()``, each answer in a separate process."""

    def answers(**environ: str) -> tuple[int, bool]:
        program = "from spark_estimator.collectives import context as c; print(c.nccl_built(), c.cuda_built())"
        completed = subprocess.run(
            [sys.executable, "-c", program], env={**os.environ, **fakes, **environ}, capture_output=True, text=True,
            check=True, timeout=60,
        )  # fmt: skip
        version, opens = completed.stdout.split()
        return int(version), opens == "True"

    assert answers() == (22703, True)
    assert answers(FAKE_NCCL_VERSION="22000") == (22000, True)
    assert answers(CUDA_VISIBLE_DEVICES="") == (0, True)
    assert answers(HOROVOD_GPU_OPERATIONS="copy") == (0, False)
    assert answers(HOROVOD_GPU_OPERATIONS="staged") == (0, True)
    assert answers(HOROVOD_GPU_OPERATIONS="nonsense") == (0, False)
    nowhere = {"SPARK_ESTIMATOR_CUDA_LIBRARY": "/nowhere/c.so", "SPARK_ESTIMATOR_NCCL_LIBRARY": "/nowhere/n.so"}
    assert answers(**nowhere) == (0, False)
    engine = str(Path(_native.__file__).with_name("libspark_estimator_engine.so"))  # a library, and no CUDA runtime
    assert answers(SPARK_ESTIMATOR_CUDA_LIBRARY=engine) == (22703, False)


def test_no_library_is_looked_for_in_the_paths_of_the_environment(fakes: dict[str, str], tmp_path: Path) -> None:
    """Libraries of these names would be opened, run their constructors, and get the tensors."""
    names = ("libcudart.so.13", "libcudart.so.12", "libnccl.so.2")
    for name in names:
        source = fakes[f"SPARK_ESTIMATOR_{'NCCL' if 'nccl' in name else 'CUDA'}_LIBRARY"]
        (tmp_path / name).symlink_to(source)
    program = """
from pathlib import Path
from spark_estimator.collectives import gpu_libraries as module
module._list_loaded = lambda maps: []
module._CUDA_IN_WHEELS = module._NCCL_IN_WHEELS = ()
paths = module.find_gpu_libraries(module.Settings())
print(paths, module.can_open_cuda(), module.probe_cuda(paths.cuda), module.probe_nccl(paths.nccl))
print([line for line in Path("/proc/self/maps").read_text().splitlines() if "fake" in line or "libcudart" in line])
"""
    completed = subprocess.run(
        [sys.executable, "-c", program], env={**os.environ, "LD_LIBRARY_PATH": str(tmp_path)}, capture_output=True,
        text=True, check=True, timeout=60,
    )  # fmt: skip
    answer, mapped = completed.stdout.splitlines()
    assert answer.startswith("GpuLibraries(cuda='', nccl='') False CudaFacts(runtime=0, driver=0, devices=0, trouble=")
    assert answer.count("it is neither loaded nor in a wheel, and no path was given") == 2
    assert "nvidia-cuda-runtime" in answer and "NcclFacts(version=0" in answer
    assert mapped == "[]"


@pytest.mark.parametrize(("operations", "line"), [("auto", "[X] NCCL"), ("copy", "[ ] NCCL")])
def test_check_build_shows_nccl(fakes: dict[str, str], operations: str, line: str) -> None:
    command = [sys.executable, "-m", "spark_estimator", "run", "--check-build"]
    environ = {**os.environ, **fakes, "HOROVOD_GPU_OPERATIONS": operations}
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=True, timeout=60)
    assert line in map(str.strip, done.stdout.splitlines())


def test_ways_in_words() -> None:
    installed, missing = NcclFacts(22703, ""), NcclFacts(0, "not there")
    assert "with a GPU each: by NCCL 2.27.3 (but Adasum, int16" in describe_gpu_paths("auto", installed)
    assert "with a GPU each: through pinned host memory" in describe_gpu_paths("auto", missing)
    assert "ranks that share a GPU: through pinned host memory" in describe_gpu_paths("auto", installed)
    assert "a job with GPU tensors fails" in describe_gpu_paths("nccl", missing) and "2.27.3" in describe_gpu_paths(
        "nccl", installed
    )
    assert describe_gpu_paths("staged", installed) == "all through pinned host memory"


def test_names_of_versions() -> None:
    assert (format_cuda_version(12090), format_cuda_version(13000), format_nccl_version(22703)) == (
        "12.9",
        "13.0",
        "2.27.3",
    )
