"""What real servers answered, shortened: sglang-router 0.3.2, vllm-router 0.1.17, vLLM 0.32, Dynamo 1.6.1."""

from contextlib import asynccontextmanager

from scripted import Said, Server


def models(owned_by, name="m", **more):
    return Said({"object": "list", "data": [{"id": name, "object": "model", "owned_by": owned_by, **more}]})


def sglang_router(prefill, decode, name="stub-model"):
    def worker(url, kind, **more):
        return {
            "id": "bf5677f7",
            "url": url,
            "model_id": name,
            "priority": 50,
            "cost": 1.0,
            "worker_type": kind,
            "is_healthy": True,
            "load": 0,
            "connection_mode": "HTTP",
            "metadata": {"dp_size": "1", "disaggregation_mode": kind},
            "disable_health_check": False,
            **more,
        }

    workers = [worker(url, "prefill", bootstrap_port=8998) for url in prefill]
    workers += [worker(url, "decode") for url in decode]
    stats = {"prefill_count": len(prefill), "decode_count": len(decode), "regular_count": 0}
    return {
        "/v1/models": models("local", name),
        "/workers": Said({"workers": workers, "total": len(workers), "stats": stats}),
        "/health": Said(b"OK"),
        "/get_server_info": Said({"router_manager": True, "routers_count": 1, "workers_count": 2}),
        "POST /v1/chat/completions": Said(b"Failed to deserialize the JSON body", 422),
    }


def sglang_worker(name="stub-model", version="0.5.23"):
    return {
        "/v1/models": models("sglang", name, max_model_len=4096),
        "/server_info": Said({"version": version, "model_path": "/models/x"}),
    }


def vllm_router(prefill, decode):
    def worker(url, kind):
        seen = {"url": url, "model_id": "unknown", "worker_type": kind, "is_healthy": True, "load": 0}
        return {**seen, "connection_mode": "Http", "priority": 50, "cost": 1.0}

    workers = [worker(url, "decode") for url in decode] + [worker(url, "prefill") for url in prefill]
    return {
        "/v1/models": models("vllm", "smollm2", max_model_len=2048),
        "/workers": Said({"workers": workers, "total": len(workers), "stats": {"prefill_count": 1}}),
        "/health": Said(b"All servers healthy"),
        "*": Said(b"Only POST requests are supported for transparent proxy", 405),
    }


def vllm_worker(version="0.32.0"):
    return {
        "/v1/models": models("vllm", "smollm2", max_model_len=2048),
        "/version": Said({"version": version}),
        "/health": Said(b""),
    }


def dynamo_frontend(offered=True):
    missing = Said({"message": "Route not found", "type": "Not Found", "code": 404}, 404)
    instance = {"component": "backend", "endpoint": "generate", "transport": {"tcp": "127.0.0.1:36223/6cd/x"}}
    return {
        "/v1/models": models("nvidia", "tiny", context_window=0)
        if offered
        else Said({"object": "list", "data": []}),
        "/health": Said(
            {"status": "healthy", "endpoints": ["dyn://dynamo.backend.generate"], "instances": [instance]}
        ),
        "/openapi.json": Said({"openapi": "3.1.0", "info": {"title": "NVIDIA Dynamo", "version": "1.6.1"}}),
        "*": missing,
    }


@asynccontextmanager
async def deployment(router, prefill, decode):
    """A router whose paths `router([prefill's URL], [decode's URL])` makes, in front of one worker each."""
    async with (
        Server(prefill) as one,
        Server(decode) as other,
        Server(router([one.url], [other.url])) as front,
    ):
        yield front, one, other
