"""Which layer a run names for a fault, and that it is never sure of another one."""

from __future__ import annotations

import pytest


@pytest.mark.parametrize(
    ("dialect", "fault", "probe", "layer", "sureness"),
    [
        ("sglang", "transfer-stuck", "settle", "KV transfer", "likely"),
        ("vllm", "transfer-stuck", "settle", "KV transfer", "shown"),
        ("sglang", "bootstrap-stuck", "settle", "KV transfer", "likely"),
        ("sglang", "decode-hang-midstream=2", "settle", "decode", "likely"),
        ("sglang", "hang-before-headers=role=router", "settle", "router", "shown"),
        ("vllm", "hang-before-headers=role=decode", "settle", "decode", "shown"),
        ("vllm", "hang-before-headers=role=prefill", "settle", "prefill", "shown"),
        ("sglang", "decode-stopped", "settle", "decode", "shown"),
        ("vllm", "decode-dead", "settle", "decode", "shown"),
        ("sglang", "hang-midstream=1,role=proxy --proxy", "settle", "proxy", "shown"),
        ("vllm", "reset-midstream=1,role=router", "short_answers", "router", "shown"),
        ("vllm", "error-event=1", "short_answers", "decode", "shown"),
    ],
)
def test_the_layer_is_named(run, dialect, fault, probe, layer, sureness):
    run.write("pdserve.toml", "[sim]\nlimits.deadline = 1.5\n")
    ran = run("--pd-target=sim", f"--pd-sim=--dialect {dialect} --fault {fault}", "-k", probe, "-x")
    assert (ran.code, ran.verdict) == (1, "REJECTED"), ran.out
    findings = [finding for each in ran.record["probes"] for finding in each["findings"]]
    assert [(found["layer"], found["sureness"]) for found in findings] == [(layer, sureness)], ran.out


@pytest.mark.parametrize(
    ("dialect", "fault", "layer"),
    [
        ("vllm", "hang-before-headers=role=decode", "decode"),
        ("vllm", "reset-midstream=1,role=decode", "decode"),
        ("sglang", "transfer-stuck", "KV transfer"),
    ],
)
def test_a_fault_of_some_requests_is_never_pinned_on_another_layer(run, dialect, fault, layer):
    run.write("pdserve.toml", "[sim]\nlimits.deadline = 1.5\n")
    separator = "," if "=" in fault else "="
    arguments = f"--proxy --dialect {dialect} --fault {fault}{separator}share=0.5 --seed 5"
    ran = run("--pd-target=sim", f"--pd-sim={arguments}", "-k", "short_answers", "--pd-keep-going")
    findings = [finding for each in ran.record["probes"] for finding in each["findings"]]
    assert findings, ran.out
    wrong = [found for found in findings if found["sureness"] == "shown" and found["layer"] != layer]
    assert not wrong, wrong
