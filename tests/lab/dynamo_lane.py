"""NVIDIA Dynamo's own frontend over two mock engines: no GPU, no weights, answers that are random text."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.lab.deployment import Service
from tests.lab.environment import pip, prepare, python, venv
from tests.lab.lane import Lane

HERE = Path(__file__).parent
RUNTIME = "ai-dynamo-runtime==1.6.1"
DYNAMO = "ai-dynamo==1.6.1"
NEEDED = (
    "aiohttp<4",
    "certifi",
    "kubernetes<33,>=32.0.1",
    "msgspec",
    "prometheus-client",
    "pyzmq",
    "redis<9",
    "tqdm",
    "transformers",
    "zstandard<1",
)
"""What Dynamo really needs here: its own list names a package that is but a stub."""
LOCK = HERE / "dynamo.lock"
MODEL = "tiny"

PORTS: Mapping[str, int] = {
    "frontend": 18200,
    "prefill": 18201,
    "decode": 18202,
    "prefill bootstrap": 18290,
}


class DynamoLane(Lane):
    """The frontend and its mock engines: they find each other by a folder and talk over loopback."""

    name = "dynamo"
    # its ZMQ and bootstrap ports listen on every interface, and no option changes that
    isolated = True
    checks = "check_dynamo.py"
    ports = PORTS

    def prepare(self, folder: Path) -> bool:
        """Install Dynamo and write the model's tokenizer and settings."""
        steps = (
            venv(folder),
            pip(folder, "install", "-q", "-c", str(LOCK), RUNTIME, *NEEDED),
            pip(folder, "install", "-q", "--no-deps", DYNAMO),
            (str(python(folder)), "-P", str(HERE / "make_tiny.py"), "model"),
        )
        pins = (RUNTIME, DYNAMO, *NEEDED, LOCK.read_text(), (HERE / "make_tiny.py").read_text())
        return prepare(folder, pins, steps, os.environ)

    def waves(self, folder: Path, work: Path) -> Sequence[Sequence[Service]]:
        """Return both mock engines and the frontend: they wait for each other."""
        local = dict.fromkeys(
            ("DYN_TCP_RPC_HOST", "DYN_SYSTEM_HOST", "DYN_EVENT_PLANE_HOST", "DYN_TCP_RESPONSE_STREAM_HOST"),
            "127.0.0.1",
        )
        environ = local | {
            "DYN_DISCOVERY_BACKEND": "file",
            "DYN_FILE_KV": str(work),
            "DYN_REQUEST_PLANE": "tcp",
            "DYN_EVENT_PLANE": "zmq",
            "HF_HUB_OFFLINE": "1",
        }
        bootstrap = ("--bootstrap-ports", str(PORTS["prefill bootstrap"]))
        frontend = (
            "--http-host",
            "127.0.0.1",
            "--http-port",
            str(PORTS["frontend"]),
            "--router-mode",
            "round-robin",
        )
        return (
            (
                self._engine(folder, environ, "prefill", "prefill", bootstrap),
                self._engine(folder, environ, "decode", "backend", ()),
                Service(
                    "frontend",
                    (str(python(folder)), "-m", "dynamo.frontend", *frontend),
                    PORTS["frontend"],
                    path="/v1/models",
                    answer=f'"{MODEL}"'.encode(),
                    environ=environ,
                    limit=60.0,
                ),
            ),
        )

    def _engine(
        self, folder: Path, environ: Mapping[str, str], role: str, component: str, more: tuple[str, ...]
    ) -> Service:
        options = (
            "--model-path",
            str(folder / "model"),
            "--model-name",
            MODEL,
            "--disaggregation-mode",
            role,
        )
        endpoint = ("--endpoint", f"dyn://dynamo.{component}.generate")
        command = (str(python(folder)), "-m", "dynamo.mocker", *options, *endpoint, *more)
        system = {"DYN_SYSTEM_PORT": str(PORTS[role])}
        # a mock engine's /health is 503 while it serves; its metrics are there from the start
        return Service(role, command, PORTS[role], path="/metrics", environ={**environ, **system}, limit=60.0)
