"""A stand-in for Kubernetes' API server, for Spark's own back-end: its pods are processes on hosts of namespaces.

It keeps what is posted, tells watchers of pods, starts a pod's container as a process, and reports how it ended. It
does not check what it is given.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import queue
import re
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from benchmarks.namespaces import Host

_PATH = re.compile(r"^/api/v1/namespaces/[^/]+/(\w+)(?:/([^/]+))?$")
Item = dict[str, Any]


class KubernetesApi:
    """The server, as a context manager.

    Args:
        home: the host that it listens on.
        nodes: the hosts whose processes are the pods; they take turns.
        entrypoint: that of the image.
        env: of every pod, besides those of its manifest.
        folder: for the home folders and logs of pods.
        paths: of the image, and what is there on this machine.

    Attributes:
        address: for ``spark.master``.
    """

    def __init__(
        self,
        home: Host,
        nodes: Sequence[Host],
        entrypoint: Path,
        env: Mapping[str, str],
        folder: Path,
        paths: Mapping[str, str] | None = None,
    ) -> None:
        self._nodes = itertools.cycle(nodes)
        self._entrypoint, self._env, self._folder, self._paths = entrypoint, dict(env), folder, dict(paths or {})
        self._lock = threading.Lock()
        self._items: dict[tuple[str, str], Item] = {}
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._watchers: list[queue.Queue[Item | None]] = []
        self._versions = itertools.count(1)
        handler = type("Handler", (_Handler,), {"api": self})
        with home.entered():
            self._server = ThreadingHTTPServer((home.address, 0), handler)
        self._server.daemon_threads = True
        self.address = f"k8s://http://{home.address}:{self._server.server_port}"

    def __enter__(self) -> KubernetesApi:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        for name in list(self._processes):
            self.kill(name)
        for watcher in self._watchers:
            watcher.put(None)
        self._server.shutdown()
        self._server.server_close()

    def list_items(self, kind: str, selector: str = "") -> list[Item]:
        """Return the items of a kind whose labels fit a selector of equalities."""
        with self._lock:
            items = [item for (other, _), item in self._items.items() if other == kind]
        return [item for item in items if fits(item, selector)]

    def find(self, kind: str, name: str) -> Item | None:
        """Return an item; None: there is none."""
        with self._lock:
            return self._items.get((kind, name))

    def add(self, kind: str, item: Item) -> Item:
        """Keep an item, and start it if it is a pod with a container to start."""
        name = item["metadata"].setdefault("name", f"{kind}-{next(self._versions)}")
        item["metadata"].setdefault("labels", {})
        item["metadata"].setdefault("uid", f"uid-{name}")
        item["metadata"]["creationTimestamp"] = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        if kind == "pods":
            item["status"] = {"phase": "Pending"}
        self._publish("ADDED", kind, item)
        if kind == "pods" and item["spec"]["containers"][0].get("args"):
            threading.Thread(target=self._start, args=(item,), daemon=True).start()
        return item

    def merge(self, kind: str, name: str, patch: Any) -> Item:
        """Change an item, or add it, as a server-side apply does."""
        item = self.find(kind, name)
        if item is None:
            return self.add(kind, patch)
        if isinstance(patch, dict):
            item["metadata"]["labels"].update(patch.get("metadata", {}).get("labels", {}))
        self._publish("MODIFIED", kind, item)
        return item

    def remove(self, kind: str, name: str) -> None:
        """Remove an item; a pod's process ends."""
        with self._lock:
            item = self._items.pop((kind, name), None)
        if item is not None:
            self.kill(name)
            self._publish("DELETED", kind, item, keep=False)

    def kill(self, name: str) -> None:
        """Kill all processes of a pod, as for want of memory."""
        process = self._processes.get(name)
        if process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)

    def watch(self) -> queue.Queue[Item | None]:
        """Return a queue of what happens to pods; None ends it."""
        watcher: queue.Queue[Item | None] = queue.Queue()
        with self._lock:
            self._watchers.append(watcher)
        return watcher

    def _publish(self, event: str, kind: str, item: Item, keep: bool = True) -> None:
        with self._lock:
            item["metadata"]["resourceVersion"] = str(next(self._versions))
            if keep:
                self._items[kind, item["metadata"]["name"]] = item
            watchers = list(self._watchers) if kind == "pods" else []
        for watcher in watchers:
            watcher.put(json.loads(json.dumps({"type": event, "object": item})))

    def _start(self, pod: Item) -> None:
        """Start the pod's first container as a process on the next node, once the volumes are there."""
        node, name = next(self._nodes), pod["metadata"]["name"]
        (container,) = pod["spec"]["containers"]
        folder = self._folder / name
        folder.mkdir()
        paths = self._mount(pod, folder, node.address)
        known = {"status.podIP": node.address, "metadata.name": name, "spec.nodeName": node.name}
        env = {**self._env, "SPARK_LOCAL_IP": node.address}  # a pod's name has an address in its /etc/hosts
        for variable in container.get("env", []):
            source = variable.get("valueFrom", {}).get("fieldRef", {}).get("fieldPath")
            env[variable["name"]] = known[source] if source else replace_paths(variable.get("value", ""), paths)
        arguments = [replace_paths(argument, paths) for argument in container["args"]]
        log = (folder / "log").open("wb")
        with node.entered():
            process = subprocess.Popen(
                [*node.named, str(self._entrypoint), *arguments],
                env={**env, "HOME": str(folder)},
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._processes[name] = process
        self._report(pod, container["name"], node.address, "Running", {"running": {}})
        threading.Thread(target=self._wait, args=(pod, container["name"], node.address), daemon=True).start()

    def _mount(self, pod: Item, folder: Path, address: str) -> dict[str, str]:
        """Write the pod's config maps, which are posted after it. Return the folder of each mounted path."""
        mounts = {mount["name"]: mount["mountPath"] for mount in pod["spec"]["containers"][0].get("volumeMounts", [])}
        volumes = [volume for volume in pod["spec"].get("volumes", []) if "configMap" in volume]
        paths = self._paths | {mounts[volume["name"]]: str(folder / volume["name"]) for volume in volumes}
        for volume in volumes:
            deadline = time.monotonic() + 60
            while (content := self.find("configmaps", volume["configMap"]["name"])) is None:
                assert time.monotonic() < deadline, f"no config map {volume}"
                time.sleep(0.1)
            names = {item["key"]: item["path"] for item in volume["configMap"].get("items", [])}
            (folder / volume["name"]).mkdir()
            for key, text in content["data"].items():
                # The name of the driver's service, which no server of names knows here.
                text = re.sub(r"(spark\.driver\.host=).*", rf"\g<1>{address}", replace_paths(text, paths))
                (folder / volume["name"] / names.get(key, key)).write_text(text)
        return paths

    def _wait(self, pod: Item, container: str, address: str) -> None:
        code = self._processes[pod["metadata"]["name"]].wait()
        code = 128 - code if code < 0 else code
        reason = "OOMKilled" if code == 137 else "Error" if code else "Completed"
        ended = {"terminated": {"exitCode": code, "reason": reason}}
        if self.find("pods", pod["metadata"]["name"]) is not None:
            self._report(pod, container, address, "Failed" if code else "Succeeded", ended)

    def _report(self, pod: Item, container: str, address: str, phase: str, state: Item) -> None:
        status = {"name": container, "state": state, "ready": phase == "Running", "restartCount": 0}
        pod["status"] = {"phase": phase, "podIP": address, "containerStatuses": [status]}
        self._publish("MODIFIED", "pods", pod)


def fits(item: Item, selector: str) -> bool:
    """Return whether an item's labels fit a selector of equalities."""
    wanted = [term.split("=", 1) for term in selector.split(",") if re.fullmatch(r"[^!=]+=[^=]+", term)]
    return all(item["metadata"]["labels"].get(key) == value for key, value in wanted)


def replace_paths(text: str, paths: Mapping[str, str]) -> str:
    """Return a text with paths of a pod as they are on this machine."""
    for path, here in paths.items():
        text = text.replace(path, here)
    return text


class _Handler(BaseHTTPRequestHandler):
    api: KubernetesApi
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        """Answer with one item, a list, or the events of a watch."""
        kind, name, query = self._parse()
        if self.headers.get("Upgrade"):  # watches by a web socket; the client then asks for a stream
            self._answer(503, {"kind": "Status", "code": 503})
        elif query.get("watch") == "true":
            self._stream(query.get("fieldSelector", ""), query.get("labelSelector", ""))
        elif name:
            item = self.api.find(kind, name)
            self._answer(200 if item else 404, item or {"kind": "Status", "code": 404})
        else:
            items = self.api.list_items(kind, query.get("labelSelector", ""))
            self._answer(200, {"kind": "List", "metadata": {"resourceVersion": "1"}, "items": items})

    def do_POST(self) -> None:
        """Add an item."""
        kind, _, _ = self._parse()
        self._answer(201, self.api.add(kind, self._read()))

    def do_PATCH(self) -> None:
        """Change an item."""
        kind, name, _ = self._parse()
        self._answer(200, self.api.merge(kind, name, self._read()))

    do_PUT = do_PATCH

    def do_DELETE(self) -> None:
        """Remove an item, or those of a selector."""
        kind, name, query = self._parse()
        self._read()
        names = (
            [name] if name else [item["metadata"]["name"] for item in self.api.list_items(kind, query["labelSelector"])]
        )
        for each in names:
            self.api.remove(kind, each)
        self._answer(200, {"kind": "Status", "status": "Success"})

    def _parse(self) -> tuple[str, str, dict[str, str]]:
        parts = urlsplit(self.path)
        match = _PATH.match(parts.path)
        query = {key: values[0] for key, values in parse_qs(parts.query).items()}
        return (match[1], match[2] or "", query) if match else ("", parts.path, query)

    def _read(self) -> Any:
        content = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        return json.loads(content) if content else {}

    def _answer(self, code: int, item: Item) -> None:
        content = json.dumps(item).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def _stream(self, fields: str, labels: str) -> None:
        watcher = self.api.watch()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        with contextlib.suppress(OSError):
            while (event := watcher.get()) is not None:
                name = re.search(r"metadata\.name=([^,]+)", fields)
                if (name and name[1] != event["object"]["metadata"]["name"]) or not fits(event["object"], labels):
                    continue
                line = json.dumps(event).encode() + b"\n"
                self.wfile.write(f"{len(line):x}\r\n".encode() + line + b"\r\n")

    def log_message(self, format: str, *arguments: object) -> None:
        """Say nothing."""
