"""Cause the failures of cause_cases.yaml for real, and keep their logs with labels.

    python -m tests.tasks.diagnose.cause_cases tests/tasks/diagnose/cases/caused [ID...]

Paths and names of the machine are replaced; all else is what the programs printed.
"""

from __future__ import annotations

import os
import re
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import yaml

from tasks.diagnose.classes import CLASSES

HEADER = "file\tclass\tcategory\troot_cause_line\tfaulty_rank\tfaulty_node\taction\tfidelity\tnote"
_LIMIT_S = 90.0
_TORCHRUN = ["-m", "torch.distributed.run", "--rdzv-backend=c10d", "--local-addr=127.0.0.1"]


def cause(case: dict[str, Any], folder: Path) -> bytes:
    """Run the case's program until it ends; what it wrote."""
    command, log = _command(case, folder), folder / "out.log"
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    environment |= {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    environment |= case.get("env", {})
    with _service(case) as address, open(log, "wb") as file:
        environment |= {"S3": address} if address else {}
        process = subprocess.Popen(
            command,
            cwd=folder,
            env=environment,
            stdout=file,
            stderr=file,
            preexec_fn=_limiter(case.get("limit_mb")),
        )
        if "signal" in case:
            time.sleep(case["signal_after_s"])
            process.send_signal(getattr(signal, case["signal"]))
        process.wait(_LIMIT_S)
    return log.read_bytes()


def _command(case: dict[str, Any], folder: Path) -> list[str]:
    if "shell" in case:
        (folder / "job.sh").write_text(case["shell"])
        return ["bash", "job.sh"]
    (folder / "train.py").write_text(case["python"] + "\n")
    arguments = ["train.py", *case.get("args", [])]
    if "ranks" not in case:
        return [sys.executable, *arguments]
    rendezvous = f"--rdzv-endpoint={folder / 'store'}"
    ranks = [f"--nproc-per-node={case['ranks']}", rendezvous, "--rdzv-conf=store_type=file"]
    return [sys.executable, *_TORCHRUN, *ranks, *arguments]


def _limiter(limit_mb: int | None) -> Any:
    if limit_mb is None:
        return None
    return lambda: resource.setrlimit(resource.RLIMIT_AS, (limit_mb << 20, limit_mb << 20))


@contextmanager
def _service(case: dict[str, Any]) -> Iterator[str | None]:
    """The object store that the case needs: a real one, or one that only answers with a status."""
    if case.get("moto"):
        from moto.server import ThreadedMotoServer

        server = ThreadedMotoServer(port=0, verbose=False)
        server.start()
        host, port = server.get_host_and_port()
        yield f"http://{host.replace('0.0.0.0', '127.0.0.1')}:{port}"
        server.stop()
    elif "answers" in case:
        with _answering(case["answers"]) as address:
            yield address
    else:
        yield None


@contextmanager
def _answering(status: int) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_PUT(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            self.send_response(status)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()


def without_machine(text: bytes, folder: Path) -> bytes:
    """The log without the paths and names of the machine that caused it."""
    environment = Path(sys.executable).parent.parent
    text = text.replace(str(folder).encode(), b"/work/job")
    text = text.replace(str(environment).encode(), b"/opt/env")
    text = text.replace(str(Path(sys.base_prefix)).encode(), b"/opt/python")
    text = text.replace(str(Path.cwd()).encode(), b"/work/src")
    name = re.escape(socket.gethostname().encode())
    return re.sub(rb"(?<![\w.-])" + name + rb"(?![\w-])", b"node1", text)


def row_of(case: dict[str, Any], log: bytes) -> str:
    """The label: its root line is the one that holds the case's `root`."""
    lines = log.decode("utf-8", errors="replace").split("\n")
    number, note = 0, case.get("note", "")
    if "root" in case:
        found = [i for i, line in enumerate(lines, start=1) if case["root"] in line]
        if not found:
            raise LookupError(f"{case['id']}: {case['root']!r} is not in its log:\n{log.decode()}")
        number = found[-1] if case.get("last") else found[0]
        if "also" in case:
            found = [i for i, line in enumerate(lines, start=1) if case["also"] in line]
        if case.keys() & {"expect_any", "ranks", "also"}:
            others = ",".join(str(n) for n in found if n != number)
            note = f"{note}; alt={others}".strip("; ") if others else note
    category = CLASSES[case["class"]].category
    fields = [f"{case['id']}.log", case["class"], category, str(number), "-", "-"]
    return "\t".join([*fields, case["action"], "caused", note])


def main(target: Path, wanted: list[str]) -> None:
    """Cause all cases, or those that are named, and write logs and INDEX.tsv."""
    cases = yaml.safe_load((Path(__file__).parent / "cause_cases.yaml").read_text())
    target.mkdir(parents=True, exist_ok=True)
    index = target / "INDEX.tsv"
    rows = (
        {r.split("\t")[0]: r for r in index.read_text().splitlines()[1:]} if index.exists() else {}
    )
    for case in cases:
        if wanted and case["id"] not in wanted:
            continue
        with tempfile.TemporaryDirectory() as name:
            log = without_machine(cause(case, Path(name)), Path(name))
        try:
            rows[f"{case['id']}.log"] = row_of(case, log)
        except LookupError as error:
            print(error, file=sys.stderr)
            continue
        (target / f"{case['id']}.log").write_bytes(log)
    index.write_text("\n".join([HEADER, *(rows[name] for name in sorted(rows))]) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
