import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from multiprocessing import get_context
from pathlib import Path

import pytest
from hypothesis import given
from report_samples import DRAWN, HOSTILE, any_record, probe, record, reply

from pytest_pdserve.judge import Finding, ProbeOutcome, Sureness
from pytest_pdserve.report import RecordError, new_run_folder, point_latest, read_record, write_record

NOW = datetime(2026, 11, 30, 23, 6, 43, tzinfo=UTC)
FINDING = Finding(what="hung", evidence=("a", "b"), layer="decode", sureness=Sureness.LIKELY, replay="curl")


def test_a_record_comes_back_as_it_was(tmp_path):
    whole = record(
        probe(ProbeOutcome.HUNG, findings=(FINDING,), replies=(reply(), reply(ttft=None)), needs=("copy",)),
        probe(ProbeOutcome.NOT_RUN, reason="深度 of \x1b[31m"),
        selection="2 of 30 probes",
        incomplete="interrupted",
        client_lag=0.25,
    )
    path = write_record(tmp_path, whole)
    assert path == tmp_path / "record.json"
    assert read_record(path) == whole
    assert [entry.name for entry in tmp_path.iterdir()] == ["record.json"]


@DRAWN
@given(any_record)
def test_any_record_is_json_that_comes_back(tmp_path, drawn):
    path = write_record(tmp_path, drawn)
    again = read_record(path)
    assert json.loads(path.read_text("utf-8"))["target"]["name"] == again.target.name
    assert again.probes == tuple(map(encodable, drawn.probes))


def encodable(probe):
    data = (
        json.dumps(probe.to_json(), ensure_ascii=False)
        .encode("utf-8", "surrogatepass")
        .decode("utf-8", "replace")
    )
    return probe if "\ufffd" not in data else surrogates_written_out(probe)


def surrogates_written_out(probe):
    def written(data):
        if isinstance(data, str):
            return "".join(f"\\u{ord(char):04x}" if "\ud800" <= char <= "\udfff" else char for char in data)
        if isinstance(data, dict):
            return {written(key): written(value) for key, value in data.items()}
        return [written(item) for item in data] if isinstance(data, list | tuple) else data

    return type(probe).from_json(written(probe.to_json()))


def test_lone_surrogates_are_written_out(tmp_path):
    path = write_record(tmp_path, record(probe(reason=HOSTILE)))
    assert read_record(path).probes[0].reason == HOSTILE.replace("\ud800", r"\ud800")


def test_a_failing_disk_leaves_the_old_file(tmp_path, monkeypatch):
    path = write_record(tmp_path, record(depth="old"))

    def full(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_record(tmp_path, record(depth="new"))
    assert read_record(path).depth == "old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["record.json"]


def test_a_missing_folder_is_an_os_error(tmp_path):
    with pytest.raises(FileNotFoundError):
        write_record(tmp_path / "gone", record())


@pytest.mark.parametrize("content", ["", "[]", "{}", "nonsense", '{"schema": 1}', '{"schema": 2}'])
def test_what_is_no_record_is_refused_in_one_line(tmp_path, content):
    path = tmp_path / "record.json"
    path.write_text(content)
    with pytest.raises(RecordError) as refused:
        read_record(path)
    assert str(refused.value).startswith(f"{path}: ")
    assert "\n" not in str(refused.value)


def test_a_newer_record_is_refused_for_its_schema(tmp_path):
    path = write_record(tmp_path, replace(record(), schema=2))
    with pytest.raises(RecordError, match="schema: 2"):
        read_record(path)


def test_the_folder_is_named_after_target_and_utc_time(tmp_path):
    elsewhere = NOW.astimezone(timezone(timedelta(hours=9)))
    folder = new_run_folder(tmp_path / "reports", "llm-07", elsewhere)
    assert folder == tmp_path / "reports" / "llm-07" / "20261130T230643Z"
    assert folder.is_dir()


def test_folders_of_one_second_are_all_different_and_in_order(tmp_path):
    names = [new_run_folder(tmp_path, "sim", NOW).name for _ in range(3)]
    assert names == ["20261130T230643Z", "20261130T230643Z-2", "20261130T230643Z-3"]


def make_folders(reports: Path) -> list[str]:
    return [new_run_folder(reports, "sim", NOW).name for _ in range(40)]


def test_two_processes_never_share_a_folder(tmp_path):
    with get_context("spawn").Pool(2) as pool:
        both = pool.map_async(make_folders, [tmp_path, tmp_path]).get(60)
    assert len({*both[0], *both[1]}) == 80


@pytest.mark.parametrize("target", ["", ".", "..", "a/b", "a\\b", "a\0b"])
def test_a_name_that_leads_elsewhere_is_refused(tmp_path, target):
    with pytest.raises(ValueError, match="not a name for a folder"):
        new_run_folder(tmp_path, target, NOW)
    assert not list(tmp_path.iterdir())


def test_latest_follows_the_last_run_and_survives_a_move(tmp_path):
    first, second = (new_run_folder(tmp_path / "reports", "sim", NOW) for _ in range(2))
    point_latest(first)
    latest = point_latest(second)
    (second / "report.html").write_text("second")
    (tmp_path / "reports").rename(tmp_path / "moved")
    moved = tmp_path / "moved" / latest.relative_to(tmp_path / "reports")
    assert (moved / "report.html").read_text() == "second"
    assert {entry.name for entry in moved.parent.iterdir()} == {first.name, second.name, "latest"}


def test_a_dangling_latest_is_replaced(tmp_path):
    folder = new_run_folder(tmp_path, "sim", NOW)
    (folder.parent / "latest").symlink_to("gone")
    assert point_latest(folder).resolve() == folder.resolve()


@pytest.mark.parametrize("made", [Path.mkdir, Path.touch])
def test_what_no_run_has_left_is_not_replaced(tmp_path, made):
    folder = new_run_folder(tmp_path, "sim", NOW)
    made(folder.parent / "latest")
    with pytest.raises(FileExistsError, match="not a link"):
        point_latest(folder)
    assert {entry.name for entry in folder.parent.iterdir()} == {folder.name, "latest"}


def test_where_links_are_not_allowed_it_is_an_os_error(tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(Path, "symlink_to", refuse)
    with pytest.raises(PermissionError):
        point_latest(new_run_folder(tmp_path, "sim", NOW))


def test_a_link_that_can_not_be_put_in_place_leaves_nothing_behind(tmp_path, monkeypatch):
    folder = new_run_folder(tmp_path, "sim", NOW)

    def refuse(*_):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr("os.replace", refuse)
    with pytest.raises(PermissionError):
        point_latest(folder)
    assert [entry.name for entry in folder.parent.iterdir()] == [folder.name]
