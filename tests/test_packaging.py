"""One wheel for every Python, whole; the source distribution holds the very files that it is built from."""

from __future__ import annotations

import email
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from datetime import date
from pathlib import Path
from types import ModuleType

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

import spark_estimator

ROOT = Path(__file__).resolve().parents[1]
LIBRARY = "spark_estimator/libspark_estimator_engine.so"

# Compiling the engine takes a minute on a busy machine of two cores.
pytestmark = pytest.mark.timeout(600)


def run(*command: str | Path, cwd: Path, **environ: str) -> str:
    answer = subprocess.run(
        command,
        cwd=cwd,
        env={**os.environ, **environ},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert answer.returncode == 0, answer.stdout + answer.stderr
    return answer.stdout


#: The day on which SAFE was compared with the published faults; release/README.md asks for it before each release.
SAFE_OF = "2026-11-29"
#: The first versions without the faults by which a file of data or of a model runs code. PyTorch's is one that some
#: platforms do not bring yet: below 2.10 `checkpoint.restricted` warns of CVE-2026-24747 when a file is read.
SAFE = {
    "torch": "2.6",  # CVE-2025-32434: torch.load(weights_only=True)
    "pyarrow": "14.0.1",  # CVE-2023-47248: extension types in Parquet, Feather and IPC files
    "keras": "3.13.2",  # CVE-2025-1550, -8747, -9905, -9906, -49655, CVE-2026-1462: models, also with safe_mode=True
    "keras of Python 3.10": "3.12.1",  # its last minor version, to which the repair of CVE-2026-1462 was brought
    "tf_keras": "2.20.1",  # arrays in a model's file could be pickles
    "transformers": "5.5",  # CVE-2026-4372, -5241: a config chooses kernels of the Hub, or trusts itself
    "peft": "0.20",  # an adapter's config names modules that are imported
}


def of_extras() -> list[tuple[str, Requirement]]:
    """(extra, requirement) of pyproject.toml."""
    text = (ROOT / "pyproject.toml").read_text()
    table = text[text.index("[project.optional-dependencies]") : text.index("[tool.scikit-build]")]
    extras = re.findall(r"(?ms)^(\w+) = \[(.*?)\]$", re.sub(r"#.*", "", table))
    return [(extra, Requirement(entry)) for extra, entries in extras for entry in re.findall(r'"([^"]+)"', entries)]


def safe_name(requirement: Requirement) -> str:
    """Its name in SAFE."""
    is_of_310 = requirement.marker is not None and not requirement.marker.evaluate({"python_version": "3.11"})
    return f"{requirement.name} of Python 3.10" if is_of_310 else requirement.name


def test_no_extra_allows_a_version_in_which_files_run_code() -> None:
    floors = [(extra, safe_name(each), each.specifier) for extra, each in of_extras() if safe_name(each) in SAFE]
    assert {name for _, name, _ in floors} == set(SAFE)
    for extra, name, specifier in floors:
        bounds = [Version(bound.version) for bound in specifier if bound.operator == ">="]
        assert bounds and max(bounds) >= Version(SAFE[name]), f"{extra}: {name}{specifier}, known on {SAFE_OF}"
    page = (ROOT / "docs" / "how-to" / "install" / "pip.md").read_text()
    assert f"| `torch` | PyTorch {SAFE['torch']} or later |" in page
    of_310 = SAFE["keras of Python 3.10"]
    assert f"| `keras` | Keras {SAFE['keras']} or later ({of_310} with Python 3.10). " in page
    assert f"| `transformers` | PyTorch, transformers {SAFE['transformers']} or later and peft, " in page
    assert f"PyTorch must be {SAFE['torch']} or later" in (ROOT / "README.md").read_text()


def test_the_versions_of_the_constraints_are_such() -> None:
    lines = re.sub(r"#.*", "", (ROOT / "constraints.txt").read_text()).split("\n")
    pinned = [Requirement(line) for line in lines if line.strip()]
    versions = {safe_name(each): next(iter(each.specifier)).version for each in pinned if safe_name(each) in SAFE}
    assert versions.keys() == SAFE.keys()
    for name, version in versions.items():
        assert Version(version) >= Version(SAFE[name]), f"{name}=={version}, known on {SAFE_OF}"


def test_the_checklist_of_a_release_asks_for_new_faults() -> None:
    assert "`SAFE` in `tests/test_packaging.py`" in (ROOT / "release" / "README.md").read_text()
    date.fromisoformat(SAFE_OF)


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sdist")
    program = "import sys; from scikit_build_core.build import build_sdist; build_sdist(sys.argv[1])"
    run(sys.executable, "-c", program, folder, cwd=ROOT)
    return next(folder.glob("*.tar.gz"))


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel that `make` has built, if nothing has changed since; else a new one, which takes a minute or two."""
    sources = [path for name in ("native", "spark_estimator") for path in (ROOT / name).rglob("*")]
    sources = [path for path in sources if path.is_file() and path.suffix not in (".so", ".pyc")]
    newest = max(path.stat().st_mtime for path in (*sources, ROOT / "pyproject.toml"))
    built = [path for path in ROOT.glob("dist/*.whl") if path.stat().st_mtime > newest]
    if built:
        return built[0]
    folder = tmp_path_factory.mktemp("wheel")
    offline = ("--no-build-isolation", "--no-deps", "--no-index")
    run(sys.executable, "-m", "pip", "wheel", *offline, "--wheel-dir", folder, ROOT, cwd=folder)
    return next(folder.glob("*.whl"))


@pytest.mark.slow
def test_the_source_distribution_holds_what_the_build_reads(sdist: Path) -> None:
    with tarfile.open(sdist) as archive:
        files = [member for member in archive.getmembers() if member.isfile()]
        contents = {file.name.partition("/")[2]: archive.extractfile(file).read() for file in files}  # type: ignore[union-attr]
    names = set(contents)
    assert {"pyproject.toml", "LICENSE", "README.md", "Makefile", "constraints.txt"} <= names
    tracked = run("git", "ls-files", "native", "spark_estimator", cwd=ROOT).split() if (ROOT / ".git").exists() else []
    assert not set(tracked) - names
    # What is built from the same files is the same wheel.
    changed = [name for name in (*tracked, "pyproject.toml") if contents[name] != (ROOT / name).read_bytes()]
    assert not changed
    assert not [name for name in names if name.endswith((".so", ".pyc")) or name.startswith((".venv", "build", "dist"))]


def test_the_wheel_serves_every_python(wheel: Path) -> None:
    name = wheel.name
    assert re.fullmatch(rf"spark_estimator-{re.escape(spark_estimator.__version__)}-py3-none-\w+\.whl", name), name
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        metadata = email.message_from_bytes(archive.read(next(n for n in names if n.endswith("/METADATA"))))
    assert [name for name in names if name.endswith(".so")] == [LIBRARY]
    assert "spark_estimator/py.typed" in names
    files = (path for path in (ROOT / "spark_estimator").rglob("*") if path.is_file())
    sources = {str(path.relative_to(ROOT)) for path in files if path.suffix not in (".pyc", ".so")}
    assert not sources - names
    # No other top-level package: a real Horovod beside us must stay whole.
    assert {n.split("/")[0] for n in names} == {
        "spark_estimator", f"spark_estimator-{spark_estimator.__version__}.dist-info"
    }  # fmt: skip
    core = {line.split(">")[0] for line in metadata.get_all("Requires-Dist", []) if "extra ==" not in line}
    assert core == {"numpy", "cloudpickle"}


def test_an_installed_wheel_runs_two_ranks(wheel: Path, tmp_path: Path) -> None:
    site = tmp_path / "site"
    run(sys.executable, "-m", "pip", "install", "--no-deps", "--no-index", "--target", site, wheel, cwd=tmp_path)
    program = tmp_path / "program.py"
    program.write_text(
        "import spark_estimator, torch\n"
        "import spark_estimator.torch as hvd\n"
        "hvd.init()\n"
        "print(spark_estimator.__file__, hvd.allreduce(torch.tensor([hvd.rank() + 1.0]), op=hvd.Sum).item())\n"
        "torch.distributed.init_process_group('gloo')  # finds the job's store by the variables of the ranks\n"
        "both = torch.ones(1)\n"
        "torch.distributed.all_reduce(both)\n"
        "print('gloo', both.item())\n"
    )
    command = (site / "bin" / "horovodrun", "-np", "2", sys.executable, program)
    output = run(*command, cwd=tmp_path, PYTHONPATH=str(site))
    for rank in (0, 1):
        assert f"[{rank}]<stdout>:{site}/spark_estimator/__init__.py 3.0\n" in output
        assert f"[{rank}]<stdout>:gloo 2.0\n" in output


def test_the_package_itself_needs_two_others() -> None:
    (needed,) = re.findall(r"(?m)^dependencies = \[(.*)\]$", (ROOT / "pyproject.toml").read_text())
    assert sorted(Requirement(entry).name for entry in re.findall(r'"([^"]+)"', needed)) == ["cloudpickle", "numpy"]


@pytest.fixture
def release(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    """`release/release.py`, for a repository in a folder."""
    spec = importlib.util.spec_from_file_location("release", ROOT / "release" / "release.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "ROOT", tmp_path)
    return module


def test_a_release_has_a_date_and_a_tag(release: ModuleType, tmp_path: Path) -> None:
    changelog = tmp_path / "CHANGELOG.md"
    changelog.write_text("# Changelog\n\n## 0.2.0 (unreleased)\n\n- New.\n\n## 0.1.0 (2026-12-24)\n\n- First.\n")
    assert release.find_notes("0.1.0", draft=False) == "# spark_estimator 0.1.0 (2026-12-24)\n\n- First."
    assert "- New." in release.find_notes("0.2.0", draft=True) and "- First." not in release.find_notes("0.2.0", True)
    for version in ("0.2.0", "0.3.0"):
        with pytest.raises(SystemExit, match=f"needs a section '## {version}"):
            release.find_notes(version, draft=False)
    git = ("git", "-c", "user.name=n", "-c", "user.email=e")
    run(*git, "init", "--quiet", cwd=tmp_path)
    run("git", "add", ".", cwd=tmp_path)
    run(*git, "commit", "--quiet", "--message", "first", cwd=tmp_path)
    with pytest.raises(SystemExit, match=r"no tag v0\.1\.0"):
        release.check_source("0.1.0", draft=False)
    run("git", "tag", "v0.1.0", cwd=tmp_path)
    assert re.fullmatch(r"[0-9a-f]{40}", release.check_source("0.1.0", draft=False))
    changelog.write_text("changed")
    with pytest.raises(SystemExit, match="differ from the commit"):
        release.check_source("0.1.0", draft=False)
    # A draft reports it, and what names the commit is a digest alone.
    assert re.fullmatch(r"[0-9a-f]{40}", release.check_source("0.1.0", draft=True))


def test_the_source_distribution_is_that_of_the_commit(release: ModuleType, tmp_path: Path) -> None:
    project = '[project]\nname = "spark_estimator"\nversion = "0.1.0"\n[tool.scikit-build]\nwheel.cmake = false\n'
    (tmp_path / "pyproject.toml").write_text(project)
    (tmp_path / "committed.txt").write_text("")
    run("git", "init", "--quiet", cwd=tmp_path)
    run("git", "add", ".", cwd=tmp_path)
    run("git", "-c", "user.name=n", "-c", "user.email=e", "commit", "--quiet", "--message", "first", cwd=tmp_path)
    (tmp_path / "left.txt").write_text("")
    folder = tmp_path / "files"
    folder.mkdir()
    with tarfile.open(release.make_sdist(folder)) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert "committed.txt" in names and "left.txt" not in names


def test_checksums_are_signed_where_there_is_a_key(release: ModuleType, tmp_path: Path) -> None:
    folder, key = tmp_path / "files", tmp_path / "key"
    folder.mkdir()
    (folder / "one.whl").write_bytes(b"one")
    release.write_checksums(folder, None)
    assert run("sha256sum", "--check", "SHA256SUMS", cwd=folder) == "one.whl: OK\n"
    if shutil.which("ssh-keygen") is None:
        pytest.skip("ssh-keygen is not installed")
    run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key, cwd=tmp_path)
    release.write_checksums(folder, key)
    run("sh", "-c", "ssh-keygen -Y check-novalidate -n file -s SHA256SUMS.sig < SHA256SUMS", cwd=folder)
