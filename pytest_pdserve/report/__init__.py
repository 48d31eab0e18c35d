"""Judgements to people and machines: strings and files. Whatever a model or a server said is untrusted here."""

from pytest_pdserve.report.failure import failure_text
from pytest_pdserve.report.folder import new_run_folder, point_latest
from pytest_pdserve.report.html import header_cells, probe_html, row_cells, summary_html
from pytest_pdserve.report.record import RecordError, RunRecord, read_record, write_record
from pytest_pdserve.report.terminal import terminal_block
from pytest_pdserve.report.text import shorten, visible
from pytest_pdserve.units import seconds

__all__ = [
    "RecordError",
    "RunRecord",
    "failure_text",
    "header_cells",
    "new_run_folder",
    "point_latest",
    "probe_html",
    "read_record",
    "row_cells",
    "seconds",
    "shorten",
    "summary_html",
    "terminal_block",
    "visible",
    "write_record",
]
