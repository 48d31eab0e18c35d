"""Prometheus pages read by meaning: those of real engines, old names, and what is no such page."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_pdserve.engines import ENGINES, Meaning
from pytest_pdserve.observe.gauges import read_gauges
from pytest_pdserve.target import Role

CAPTURES = Path(__file__).parents[1] / "data" / "captures"
LABELS = '{engine_type="decode",model_name="m",tp_rank="0"}'


def read(text: str, engine: str = "sglang", role: Role = Role.DECODE) -> dict[Meaning, float]:
    return read_gauges(text, ENGINES[engine], role)


def test_real_vllm() -> None:
    page = (CAPTURES / "vllm" / "metrics-decode.txt").read_text()
    found = read(page, "vllm")
    started = found.pop(Meaning.STARTED_AT)
    assert found == {
        Meaning.RUNNING: 0,
        Meaning.WAITING: 0,
        Meaning.TRANSFERRING: 0,
        Meaning.KV_USAGE: 0,
        Meaning.TOKENS_OUT: 2076,
        Meaning.PROMPT_TOKENS: 4765,
        Meaning.PROMPT_COMPUTED: 1395,
        Meaning.TRANSFER_FAILURES: 0,
        Meaning.ABORTED: 0,
    }
    assert 1.7e9 < started < 2e9


def test_real_dynamo() -> None:
    found = read((CAPTURES / "dynamo" / "metrics-decode.txt").read_text(), "dynamo")
    assert found == {Meaning.RUNNING: 0, Meaning.WAITING: 0, Meaning.KV_USAGE: 0}


@pytest.mark.parametrize("name", ["num_prefill_bootstrap_queue_reqs", "num_prefill_prealloc_queue_reqs"])
def test_old_and_new_names(name: str) -> None:
    found = read(f"sglang:{name}{LABELS} 3\n", role=Role.PREFILL)
    assert found == {Meaning.BOOTSTRAPPING: 3}


def test_a_role_reads_its_own_queues_where_a_page_has_both() -> None:
    page = (
        f"sglang:num_prefill_inflight_queue_reqs{LABELS} 1\nsglang:num_decode_transfer_queue_reqs{LABELS} 2\n"
    )
    assert read(page, role=Role.PREFILL) == {Meaning.TRANSFERRING: 1}
    assert read(page, role=Role.DECODE) == {Meaning.TRANSFERRING: 2}


def test_ranks_are_added_up_and_usages_are_not() -> None:
    page = "".join(
        f'sglang:{name}{{dp_rank="{rank}"}} {value}\n'
        for name, values in {"num_running_reqs": (2, 3), "token_usage": (0.25, 0.5)}.items()
        for rank, value in enumerate(values)
    )
    assert read(page) == {Meaning.RUNNING: 5, Meaning.KV_USAGE: 0.5}


def test_tokens_that_are_counted_at_the_end_only_are_not_taken_for_tokens_now() -> None:
    assert read("sglang:generation_tokens_total 7\n") == {}
    page = 'sglang:realtime_tokens_total{mode="decode"} 7\nsglang:realtime_tokens_total{mode="prefill_compute"} 9\n'
    assert read(page) == {Meaning.TOKENS_OUT: 7, Meaning.PROMPT_COMPUTED: 9}


def test_an_unknown_engine_gives_what_standard_names_give() -> None:
    page = "process_start_time_seconds 1.5e9\nvllm:num_requests_running 1\n"
    assert read(page, "openai") == {Meaning.STARTED_AT: 1.5e9}


@pytest.mark.parametrize(
    "page", ["", "<html>", "# HELP x y\n", "sglang:num_running_reqs NaN\n", "\x00\xff\n" * 99]
)
def test_what_says_nothing_is_unknown(page: str) -> None:
    assert read(page) == {}


@pytest.mark.parametrize(
    "line", ["sglang:num_running_reqs", "sglang:num_running_reqs{a=", "sglang:num_running_reqs x"]
)
def test_what_is_no_number_is_said(line: str) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        read(f"{line}\n")


def test_a_huge_page_of_other_things_is_skipped() -> None:
    page = 'other_metric{a="b"} 1\n' * 200_000 + "sglang:num_running_reqs 4\n"
    assert read(page) == {Meaning.RUNNING: 4}
