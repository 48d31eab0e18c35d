import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_pdserve.target import Role, Service, Target, TargetError
from pytest_pdserve.target.models import Model, choose, read_models
from pytest_pdserve.target.workers import MOST, is_local, read_workers

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(
                ["data", "id", "owned_by", "max_model_len", "workers", "url", "worker_type", "is_healthy"]
            ),
            inner,
        )
    ),
)


def told(*entries, local=False):
    workers = [{"worker_type": kind, "url": url, **(more[0] if more else {})} for kind, url, *more in entries]
    return read_workers({"workers": workers}, router_is_local=local)


def test_workers_by_role_and_url():
    found = told(
        ("decode", "http://b:2/"),
        ("prefill", "HTTP://C:1"),
        ("prefill", "http://a:1"),
        ("decode", "http://b:2"),
    )
    assert found.workers == (
        (Role.PREFILL, "http://a:1"),
        (Role.PREFILL, "http://c:1"),
        (Role.DECODE, "http://b:2"),
    )
    assert found.notes == ()


@pytest.mark.parametrize(
    ("kind", "url", "note"),
    [
        ("prefill", "grpc://a:1", "the router's prefill grpc://a:1 is no http address: left out"),
        ("decode", "a:1", "the router's decode a:1 is no http address: left out"),
        ("decode", "http://user:pw@a:1", "the router's decode http://…@a:1 is no http address: left out"),
        ("regular", "http://a:1", "the router's worker http://a:1 is neither prefill nor decode: left out"),
        (
            "prefill",
            "http://127.0.0.1:1",
            "the router's prefill http://127.0.0.1:1 is an address on its own machine: left out",
        ),
        ("prefill", "http://x\n\x1b:1", "is no http address"),
    ],
)
def test_workers_that_cannot_be_used_are_noted(kind, url, note):
    found = told((kind, url))
    assert found.workers == ()
    assert len(found.notes) == 1
    assert note in found.notes[0]


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1:1",
        "http://127.9.9.9:1",
        "http://localhost:1",
        "http://db.localhost",
        "http://0.0.0.0:1",
        "http://[::1]:1",
        "http://[::]:1",
        "http://[::ffff:127.0.0.1]:1",
    ],
)
def test_a_routers_own_machine_is_ours_only_if_it_is_here(url):
    assert is_local(url)
    assert told(("decode", url)).workers == ()
    assert len(told(("decode", url), local=True).workers) == 1


@pytest.mark.parametrize(
    "url", ["http://10.0.0.1", "http://localhost.example.org", "http://[fe80::1]", "http://a"]
)
def test_other_machines(url):
    assert not is_local(url)
    assert len(told(("decode", url)).workers) == 1


def test_ranks_of_one_server_are_one_server():
    found = told(("decode", "http://a:1@0"), ("decode", "http://a:1@1"))
    assert found.workers == ((Role.DECODE, "http://a:1"),)
    assert found.notes == ()


def test_what_the_router_thinks_of_a_workers_health():
    assert told(("decode", "http://a:1", {"is_healthy": False})).notes == (
        "the router calls decode http://a:1 unhealthy",
    )
    assert told(("decode", "http://a:1", {"is_healthy": True})).notes == ()


def test_a_flood_of_workers_is_cut():
    found = told(*(("decode", f"http://a:{port}") for port in range(1, MOST + 10)))
    assert len(found.workers) == MOST
    assert found.notes == (f"the router lists {MOST + 9} workers; only the first {MOST} are looked at",)


@settings(deadline=None, max_examples=60)
@given(JSON)
def test_any_json_is_read_or_recognised_as_foreign(data):
    workers = read_workers(data, router_is_local=True)
    assert workers is None or isinstance(data["workers"], list)
    models = read_models(data)
    assert models is None or [model.id for model in models] == [entry["id"] for entry in data["data"]]


@pytest.mark.parametrize(
    ("entry", "length"),
    [
        ({"max_model_len": 4096}, 4096),
        ({"max_model_len": None, "context_window": 8192}, 8192),
        ({"context_window": 0}, None),
        ({"max_model_len": True}, None),
        ({"max_model_len": "4096"}, None),
        ({}, None),
    ],
)
def test_the_longest_sequence(entry, length):
    assert read_models({"data": [{"id": "m", **entry}]}) == (Model(id="m", max_model_len=length),)


def test_choosing_a_model():
    offered = (Model(id="a"), Model(id="b"))
    assert choose(None, offered, "router") == offered[0]
    assert choose("b", offered, "router") == offered[1]
    assert choose(None, (), "router") is choose("x", (), "router") is None
    with pytest.raises(TargetError, match=r'^router offers no model "c\\n" \(offered: a, b\)'):
        choose("c\n", offered, "router")


def test_a_long_list_of_models_is_cut():
    with pytest.raises(TargetError) as caught:
        choose("x", tuple(Model(id="m" * 500 + str(number)) for number in range(100)), "router")
    assert "and 88 more" in str(caught.value)
    assert len(str(caught.value)) < 1200


@settings(deadline=None, max_examples=40)
@given(
    st.builds(
        Target,
        name=st.text(),
        entry=st.text(),
        services=st.lists(
            st.builds(
                Service, role=st.sampled_from(Role), url=st.text(), name=st.text(), declared=st.booleans()
            )
        ).map(tuple),
        engine=st.sampled_from(["sglang", "openai"]),
        engine_version=st.none() | st.text(),
        model=st.none() | st.text(),
        models=st.lists(st.text()).map(tuple),
        max_model_len=st.none() | st.integers(1, 2**31),
        notes=st.lists(st.text()).map(tuple),
        unreachable=st.none() | st.text(),
    )
)
def test_a_target_travels_as_plain_json(target):
    data = target.to_json()
    assert json.loads(json.dumps(data)) == data
    again = Target.from_json(data)
    assert again == target
    assert all(isinstance(one.role, Role) for one in again.services)
    assert [service for role in Role for service in again.of(role)] == sorted(
        target.services, key=lambda one: list(Role).index(one.role)
    )
