"""The bundled suites against Dynamo's frontend and mock engines, which answer with random text."""

import pytest

from tests.lab.conftest import RUN_LIMIT, Accept
from tests.lab.dynamo_lane import PORTS

pytestmark = pytest.mark.timeout(RUN_LIMIT)

TARGET = f"""
entry = "http://127.0.0.1:{PORTS["frontend"]}"
engine = "dynamo"
prefill = ["http://127.0.0.1:{PORTS["prefill"]}"]
decode = ["http://127.0.0.1:{PORTS["decode"]}"]
"""


def test_random_text_is_no_verdict(accept: Accept) -> None:
    run = accept(TARGET)

    assert run.status == 6
    assert run.verdict == "INCONCLUSIVE"
    passed = {probe["id"].split("::")[1].split("[")[0] for probe in run.probes("passed")}
    assert {"test_service_answers", "test_short_answers_come", "test_stream_is_whole"} <= passed
    copying = [probe for probe in run.record["probes"] if "copy" in probe["needs"]]
    assert copying
    for probe in copying:
        assert probe["outcome"] == "skipped"
        assert "the model copied 0 of" in probe["reason"]
    assert not [*run.probes("failed"), *run.probes("hung")]
