"""Each bundled probe against a deployment with a fault that it exists for; `test_accepting.py` has the sound one."""

from __future__ import annotations

import json

import pytest

from tests.plugin.page import server

SEED = "--seed 3"


@pytest.mark.parametrize(
    ("fault", "probe", "outcome", "text"),
    [
        ("series=0.2,3,0.2,inf", "test_answers_settle", "hung", "answer 2 took longer than one before it"),
        ("never-warm=1", "test_answers_settle", "failed", "answers are still above 0.8 s after 12"),
        ("hang-before-headers", "test_answers_settle", "hung", "sent after"),
        ("hang-before-headers", "test_short_answers_come[streamed-fresh]", "hung", "sent after"),
        ("reset-midstream=2", "test_short_answers_come[streamed-reuse]", "failed", "broke off"),
        (
            "error-event=2",
            "test_short_answers_come[streamed-fresh]",
            "failed",
            "an error event in a 200 stream",
        ),
        ("finish-error", "test_short_answers_come[whole-fresh]", "failed", 'finish_reason "error"'),
        ("invalid-json=3", "test_short_answers_come[streamed-fresh]", "failed", "is no answer"),
        ("no-done=3", "test_short_answers_come[streamed-fresh]", "failed", "without [DONE]"),
        ("hang-before-first-token", "test_stream_is_whole", "hung", "headers after"),
        ("usage-wrong", "test_stream_is_whole", "failed", "49 output tokens are counted, 48 were allowed"),
        ("decode-hang-midstream=9", "test_stream_is_whole", "hung", "token events had come"),
        (
            "one-token-lost=after=4,share=0.5",
            "test_code_comes_back[streamed]",
            "failed",
            "right when asked again alone",
        ),
        (
            "context-lost=4",
            "test_each_turn_answers_its_own_message[3-reuse]",
            "failed",
            "answer to an earlier one",
        ),
        (
            "cross-talk=above=3 --fault decode-slow=20",  # slow, so that they overlap on any machine
            "test_own_code_comes_back[8]",
            "failed",
            "cross-talk",
        ),
    ],
)
def test_the_fault_is_found(run, fault, probe, outcome, text):
    run.write("pdserve.toml", "[sim]\nbudgets.e2e = 0.8\nlimits.deadline = 4\n")
    name = probe.split("[")[0]
    ran = run("--pd-target=sim", f"--pd-sim=--fault {fault} {SEED}", "-k", name)
    found = next(probe_ for probe_ in ran.record["probes"] if probe_["id"].endswith(probe))
    assert found["outcome"] == outcome, ran.out
    said = [line for finding in found["findings"] for line in (finding["what"], *finding["evidence"])]
    assert text in " ".join(said)
    assert (ran.code, ran.verdict) == (1, "REJECTED")


def test_a_worker_with_another_model_is_found(run, sound_sim):
    other = json.dumps({"object": "list", "data": [{"id": "last-week's", "object": "model"}]}).encode()
    with server(200, other) as decode:
        run.write(
            "pdserve.toml",
            f'[targets.x]\nentry = "{sound_sim.entry}"\nengine = "sglang"\n'
            f'prefill = ["{sound_sim.prefill[0]}"]\ndecode = ["{decode}"]\n',
        )
        ran = run("--pd-target=x", "-k", "same_model")
    assert (ran.code, ran.verdict) == (1, "REJECTED"), ran.out
    assert "decode does not serve" in ran.out
    assert "decode lists last-week's" in ran.out
