import pytest

from pytest_pdserve.engines import ENGINES, OPENAI

ROLES = {"proxy", "router", "prefill", "decode"}


@pytest.mark.parametrize("engine", ENGINES.values(), ids=ENGINES)
def test_every_engine_tells_how_each_role_is_seen_to_be_ready(engine):
    assert engine.ready.keys() == ROLES
    for paths in engine.ready.values():
        assert paths
        assert all(path.startswith("/") and not path.endswith("/") for path in paths)
    assert all(source.path.startswith("/") and source.keys for source in engine.versions)


@pytest.mark.parametrize("engine", ENGINES.values(), ids=ENGINES)
def test_no_readiness_path_makes_a_server_compute(engine):
    paths = {path for each in engine.ready.values() for path in each}
    assert not any("generate" in path or "completions" in path for path in paths)


@pytest.mark.parametrize("role", sorted(ROLES))
def test_the_health_page_of_sglang_is_never_asked_since_a_workers_generates(role):
    assert "/health" not in ENGINES["sglang"].ready[role]


def test_a_dynamo_workers_health_is_never_asked_since_it_says_notready_while_serving():
    assert not {"/health", "/live"} & set(ENGINES["dynamo"].ready["decode"])


def test_marks_tell_families_apart():
    marks = [mark for engine in ENGINES.values() for mark in engine.owned_by | engine.router_owned_by]
    assert len(marks) == len(set(marks))
    assert not OPENAI.owned_by
