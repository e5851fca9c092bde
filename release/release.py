"""Makes all that a release publishes, and tries it as users will: everything but the upload. ``make release`` runs it.

It begins with the wheels of `wheels.py` and adds the source distribution. pip then installs from a local index into a
new environment for each Python, where a job of two ranks runs; a model that MLflow has logged there is served from the
environment that it names. What is published is in ``build/release``, with checksums, a list of what was installed,
where all of it comes from, and the notes.
"""

from __future__ import annotations

import argparse
import functools
import glob
import hashlib
import http.server
import json
import os
import platform
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TRIED = ROOT / "build" / "tried"
NAME, PROJECT = "spark_estimator", "spark-estimator"
PYTHONS = ("3.10", "3.11", "3.12", "3.13", "3.14")
#: Systems without a wheel for them alone, as pip names them.
OTHERS = ("win_amd64", "macosx_12_0_arm64", "musllinux_1_2_x86_64", "manylinux_2_28_ppc64le")
JOB = """
import numpy
from spark_estimator.collectives import arrays, context
context.init()
total = arrays.allreduce(numpy.full(1000, context.rank() + 1, numpy.float32), arrays.ReduceOp.SUM)
assert context.size() == 2 and (total == 3).all()
print("two ranks have met")
"""


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description="Make and try what a release publishes.")
    parser.add_argument("--draft", action="store_true", help="allow a version without a date, a tag or a clean tree")
    parser.add_argument("--mlflow", default="3.11", help="the Python that serves a model; empty: none")
    parser.add_argument("--key", type=Path, help="of ssh, which signs the checksums")
    options = parser.parse_args()
    version = re.search(r'^__version__ = "(.+)"$', (ROOT / NAME / "__init__.py").read_text(), re.MULTILINE)[1]  # type: ignore[index]
    notes = find_notes(version, options.draft)
    commit = check_source(version, options.draft)
    folder = ROOT / "build" / "release"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    shutil.rmtree(TRIED, ignore_errors=True)
    files = sorted([*(ROOT / "build" / "wheels").glob(f"{NAME}-{version}-*.whl"), make_sdist(folder)])
    if len(files) != 4 and not options.draft:
        sys.exit(
            f"two wheels with the engine, one without it, and a source distribution are published; there are {files}"
        )
    files = [Path(shutil.copy(path, folder)) if path.parent != folder else path for path in files]
    check_files(files)
    with serve(folder) as index:
        check_choice(index, version, files)
        tried = {each: try_python(each, index, version) for each in PYTHONS}
        served = try_model(options.mlflow, index, version) if options.mlflow else skip("the model", "--mlflow is empty")
    write_inventory(folder, version)
    write_recipe(folder, version)
    write_provenance(folder, files, version, commit)
    shutil.make_archive(str(folder / f"{NAME}-{version}-site"), "zip", ROOT / "build" / "docs")
    rows = [f"| {each} | {text} |" for each, text in tried.items()]
    table = "\n".join(["| Python | Two ranks that reduce NumPy's arrays, from the wheel alone |", "|---|---|", *rows])
    (folder / "NOTES.md").write_text(
        f"{notes}\n\n## Tried\n\n{table}\n\nA model that two ranks trained with PyTorch, served: {served}.\n"
    )
    write_checksums(folder, options.key)
    print(f"{folder}: {', '.join(sorted(path.name for path in folder.iterdir()))}")
    print(f"To publish: twine upload {folder}/*.whl {folder}/*.tar.gz; the rest beside the notes")


def run(*command: str | Path, variables: Mapping[str, str] | None = None, cwd: Path | None = None) -> str:
    """Runs a command and returns its output; its error ends this program."""
    print("+", *command, flush=True)
    began = time.monotonic()
    done = subprocess.run(
        [*map(str, command)],
        cwd=cwd or ROOT,
        env={**os.environ, **(variables or {})},
        text=True,
        capture_output=True,
        check=False,
    )
    if done.returncode:
        sys.exit(f"{done.stdout}{done.stderr}\n{command[0]} has ended with exit status {done.returncode}")
    print(f"  {time.monotonic() - began:.1f} s", flush=True)
    return done.stdout


def skip(what: str, reason: str) -> str:
    """Prints what is not tried on this machine, and why. Returns it for the notes."""
    print(f"SKIPPED: {what}: {reason}", flush=True)
    return f"not tried: {reason}"


def find_notes(version: str, draft: bool) -> str:
    """The section of the changelog on a version, which has to have its date."""
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    section = re.search(rf"^## {re.escape(version)} \((.+?)\)$\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    if section is None or not (draft or re.fullmatch(r"\d{4}-\d\d-\d\d", section[1])):
        sys.exit(f"CHANGELOG.md needs a section '## {version} (YYYY-MM-DD)'")
    return f"# {NAME} {version} ({section[1]})\n{section[2].rstrip()}"


def check_source(version: str, draft: bool) -> str:
    """The commit, which needs the version's tag, and files that do not differ; a draft only reports these."""
    commit = run("git", "rev-parse", "HEAD").strip()
    problems = []
    if run("git", "status", "--porcelain").strip():
        problems.append("files differ from the commit")
    if f"v{version}" not in run("git", "tag", "--points-at", "HEAD").split():
        problems.append(f"the commit has no tag v{version}: git tag --sign v{version}")
    if problems and not draft:
        sys.exit("; ".join(problems))
    for problem in problems:
        print("DRAFT:", problem)
    return commit


def make_sdist(folder: Path) -> Path:
    """Makes the source distribution, of the commit's files alone and with its time in it."""
    time = run("git", "log", "-1", "--format=%ct").strip()
    program = "import sys; from scikit_build_core.build import build_sdist; build_sdist(sys.argv[1])"
    with tempfile.TemporaryDirectory() as scratch:
        run("git", "archive", "--format=tar", f"--output={scratch}/commit.tar", "HEAD")
        shutil.unpack_archive(f"{scratch}/commit.tar", f"{scratch}/commit")
        run(sys.executable, "-c", program, folder, cwd=Path(scratch, "commit"), variables={"SOURCE_DATE_EPOCH": time})
    (path,) = folder.glob("*.tar.gz")
    return path


def check_files(files: Sequence[Path]) -> None:
    """Has the tools of PyPI check all files, and auditwheel what each wheel needs of a system."""
    tools = Path(sys.executable).parent
    wheels = [path for path in files if path.suffix == ".whl"]
    run(tools / "twine", "check", "--strict", *files)
    run(tools / "check-wheel-contents", *wheels)
    for wheel in wheels:
        if not wheel.name.endswith("-any.whl"):
            report = " ".join(run(sys.executable, "-m", "auditwheel", "show", wheel).split())
            tag = wheel.stem.rpartition("-")[2]
            if f'is consistent with the following platform tag: "{tag}"' not in report:
                sys.exit(f"{wheel.name}: {report}")


class _Handler(http.server.SimpleHTTPRequestHandler):
    """Lists a folder's files, as a simple index does, and logs nothing."""

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextmanager
def serve(folder: Path) -> Iterator[str]:
    """Serves a folder's files as an index of one project. Yields its address."""
    pages = ROOT / "build" / "index"
    shutil.rmtree(pages, ignore_errors=True)
    shutil.copytree(folder, pages / "spark-estimator")
    handler = functools.partial(_Handler, directory=str(pages))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


def check_choice(index: str, version: str, files: Sequence[Path]) -> None:
    """That pip takes the wheel without the engine exactly where no other fits."""
    tags = {path.stem.rpartition("-")[2] for path in files if path.suffix == ".whl"} - {"any"}
    for system in (*OTHERS, *sorted(tags)):
        target = ROOT / "build" / "chosen"
        shutil.rmtree(target, ignore_errors=True)
        only = ("--only-binary=:all:", f"--platform={system}", "--no-deps", "--index-url", index, "--dest", target)
        run(sys.executable, "-m", "pip", "download", "--quiet", *only, f"spark-estimator=={version}")
        (path,) = target.iterdir()
        if path.name.endswith("-any.whl") != (system in OTHERS):
            sys.exit(f"on {system} pip takes {path.name}")


def find_python(version: str) -> str | None:
    """A Python of a version: of the path, or of pyenv or uv."""
    places = [
        *glob.glob(os.path.expanduser("~/.pyenv/versions/*/bin")),
        *glob.glob(os.path.expanduser("~/.local/share/uv/python/*/bin")),
    ]
    for place in (None, *places):
        program = shutil.which(f"python{version}", path=place)
        if program and not subprocess.run([program, "-c", "import ensurepip, ssl"], capture_output=True).returncode:
            return program
    return None


def make_environment(python: str, name: str, index: str, *packages: str) -> Path:
    """Makes a new environment with packages of the local index and of others. Returns its programs' folder."""
    target = TRIED / name
    run(python, "-m", "venv", target)
    # Most modules are never imported here: to compile all of them takes longer than the rest.
    options = ("--quiet", "--no-compile", "--extra-index-url", index)
    run(target / "bin" / "python", "-m", "pip", "install", *options, *packages)
    return target / "bin"


def try_python(version: str, index: str, release: str) -> str:
    """Runs a job of two ranks in a new environment. Returns what was used."""
    python = find_python(version)
    if python is None:
        return skip(f"Python {version}", "this machine has none")
    constraint = ("--constraint", str(ROOT / "constraints.txt"))
    programs = make_environment(python, version, index, *constraint, f"{PROJECT}=={release}")
    script = programs.parent / "job.py"
    script.write_text(JOB)
    output = run(programs / "horovodrun", "-np", "2", programs / "python", script, cwd=programs.parent)
    if output.count("two ranks have met") != 2:
        sys.exit(f"Python {version}: {output}")
    exact = run(programs / "python", "-c", "import platform; print(platform.python_version(), platform.libc_ver()[1])")
    return f"Python {exact.split()[0]} on {platform.machine()} with glibc {exact.split()[1]}"


def try_model(version: str, index: str, release: str) -> str:
    """Serves a model that MLflow has logged from a new environment of its own requirements. Returns what was used."""
    python = find_python(version)
    if python is None:
        return skip("the model", f"this machine has no Python {version}")
    constraint = ("--constraint", str(ROOT / "constraints.txt"))
    package = f"{PROJECT}[torch,spark,java]=={release}"
    programs = make_environment(python, "logging", index, *constraint, package, "mlflow")
    model = programs.parent / "model"
    run(programs / "python", ROOT / "release" / "log_model.py", programs.parent, cwd=programs.parent)
    needed = (model / "requirements.txt").read_text().split()
    serving = make_environment(python, "served", index, "--requirement", str(model / "requirements.txt"))
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    command = [
        serving / "mlflow",
        "models",
        "serve",
        "--env-manager",
        "local",
        "--model-uri",
        model,
        "--port",
        str(port),
    ]
    variables = {**os.environ, "PATH": f"{serving}:{os.environ['PATH']}"}  # it starts uvicorn
    log = serving.parent / "serve.log"
    with log.open("w") as output:
        server = subprocess.Popen(
            [*map(str, command)], env=variables, stdout=output, stderr=output, start_new_session=True
        )
    try:
        answer = ask(f"http://127.0.0.1:{port}/invocations", server, log)
    finally:
        os.killpg(server.pid, signal.SIGTERM)
        server.wait(300)
    (row,) = json.loads(answer)["predictions"]
    if abs(row["y__output"] - 7) > 0.5:
        sys.exit(f"the model of y = 3 x + 1 has answered {answer} for x = 2")
    return f"Python {version}, {', '.join(needed)}"


def ask(address: str, server: subprocess.Popen[bytes], log: Path) -> str:
    """Asks a model server, once it is there, for the prediction of one row."""
    body = json.dumps({"dataframe_records": [{"x": 2.0}]}).encode()
    request = urllib.request.Request(address, body, {"Content-Type": "application/json"})
    deadline = time.monotonic() + 900
    while True:
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return str(answer.read().decode())
        except urllib.error.HTTPError as error:
            sys.exit(f"{error}: {error.read().decode()}\n{log.read_text()}")
        except OSError as error:
            if server.poll() is not None or time.monotonic() > deadline:
                sys.exit(f"the model is not served: {error}\n{log.read_text()}")
            time.sleep(1)


def write_inventory(folder: Path, version: str) -> None:
    """Writes all packages of the model's environment, or of the newest Python's, in CycloneDX's format."""
    made = [path for path in (TRIED / "served", *(TRIED / each for each in reversed(PYTHONS))) if path.exists()]
    if not made:
        sys.exit(f"none of the Pythons {', '.join(PYTHONS)} is on this machine: nothing was tried")
    python = made[0] / "bin" / "python"
    packages = [each["metadata"] for each in json.loads(run(python, "-m", "pip", "inspect", "--local"))["installed"]]
    components = [
        {
            "type": "library",
            "name": each["name"],
            "version": each["version"],
            "purl": f"pkg:pypi/{each['name'].lower().replace('_', '-')}@{each['version']}",
        }
        for each in packages
    ]
    ours = {
        "type": "library",
        "name": "spark-estimator",
        "version": version,
        "purl": f"pkg:pypi/spark-estimator@{version}",
    }
    document = {"bomFormat": "CycloneDX", "specVersion": "1.6", "version": 1, "metadata": {"component": ours}}
    text = json.dumps({**document, "components": sorted(components, key=lambda each: each["purl"])}, indent=2)
    (folder / f"{NAME}-{version}.cdx.json").write_text(text + "\n")


def write_recipe(folder: Path, version: str) -> None:
    """Writes the recipe of the conda package, and renders it."""
    import rattler_build

    (source,) = folder.glob("*.tar.gz")
    text = (ROOT / "release" / "recipe.yaml").read_text()
    text = text.replace('"VERSION"', f'"{version}"').replace("SHA256", digest(source))
    variants = rattler_build.VariantConfig({"c_stdlib": ["sysroot"], "c_stdlib_version": ["2.28"]})
    for system in ("linux-64", "linux-aarch64"):
        config = rattler_build.RenderConfig(platform=rattler_build.PlatformConfig(target_platform=system))
        (rendered,) = rattler_build.Stage0Recipe.from_yaml(text).render(variants, config)
        print(f"conda, {system}: {rendered.recipe.to_dict()['requirements']}")
    (folder / "recipe.yaml").write_text(text)
    skip("the build of the conda package", "it needs conda-forge's channel")


def write_provenance(folder: Path, files: Sequence[Path], version: str, commit: str) -> None:
    """Writes from which commit and by which tools the files were built: an in-toto statement of SLSA's kind."""
    tools = [line for line in (ROOT / "release" / "requirements.txt").read_text().split("\n") if "==" in line]
    statement = {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [{"name": path.name, "digest": {"sha256": digest(path)}} for path in files],
        "predicateType": "https://slsa.dev/provenance/v1",
        "predicate": {
            "buildDefinition": {
                "buildType": "make release",
                "externalParameters": {"version": version, "tag": f"v{version}"},
                "resolvedDependencies": [
                    {"name": "commit", "digest": {"gitCommit": commit}},
                    *({"name": each} for each in tools),
                ],
            },
            "runDetails": {
                "builder": {"id": f"Python {platform.python_version()} on {platform.platform()}"},
                "metadata": {"finishedOn": datetime.now(timezone.utc).isoformat(timespec="seconds")},
            },
        },
    }
    (folder / f"{NAME}-{version}.provenance.json").write_text(json.dumps(statement, indent=2) + "\n")


def write_checksums(folder: Path, key: Path | None) -> None:
    """Writes the SHA-256 of every file, and ssh's signature of the list where there is a key."""
    target = folder / "SHA256SUMS"
    target.with_suffix(".sig").unlink(missing_ok=True)
    lines = [f"{digest(path)}  {path.name}\n" for path in sorted(folder.iterdir()) if path != target]
    target.write_text("".join(lines))
    if key is None:
        skip("the signature of the checksums", "KEY names no key")
    else:
        run("ssh-keygen", "-q", "-Y", "sign", "-f", key, "-n", "file", target)


def digest(path: Path) -> str:
    """The SHA-256 of a file, in hexadecimal."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


if __name__ == "__main__":
    main()
