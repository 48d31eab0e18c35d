"""How the page looks: light, dark and on paper; nothing is loaded from anywhere.

pytest-html's own part has fixed light greys, so what of it can't be read on a dark page is set anew here.
"""

from typing import Final

from pytest_pdserve.report.markup import Html

STYLE: Final = Html(
    """<style>
:root {
  color-scheme: light dark;
  --pd-good: #14692f; --pd-bad: #b3161b; --pd-unsure: #7a5200;
  --pd-text: #1a1c1f; --pd-quiet: #5a6069; --pd-line: #c9ccd1; --pd-page: #fff; --pd-inset: #f4f5f7;
}
@media (prefers-color-scheme: dark) {
  :root {
    --pd-good: #6fd08c; --pd-bad: #ff8a84; --pd-unsure: #e8b95a;
    --pd-text: #e8eaed; --pd-quiet: #a5abb5; --pd-line: #44484f; --pd-page: #16181b; --pd-inset: #23262b;
  }
}
body { background: var(--pd-page); display: flex; flex-direction: column; font-size: 14px; min-width: 0; }
#environment-header, #environment { align-self: flex-start; order: 1; }
body, h1, h2, p, a, #results-table, .logwrapper .log, .filters button, .collapse button { color: var(--pd-text); }
#results-table { font-size: 13px; }
#environment tr:nth-child(odd), .logwrapper, .logwrapper .logexpander { background: var(--pd-inset); }
#environment td, #results-table, #results-table th, #results-table td, .logwrapper .log {
  border-color: var(--pd-line);
}
span.passed, .passed .col-result { color: var(--pd-good); }
span:is(.failed, .error, .xpassed), :is(.failed, .error, .xpassed) .col-result { color: var(--pd-bad); }
span:is(.skipped, .xfailed, .rerun), :is(.skipped, .xfailed, .rerun) .col-result { color: var(--pd-unsure); }
.col-ttft, .col-e2e { white-space: nowrap; }
.summary__data, .summary__spacer { flex-basis: auto; }
.pd { color: var(--pd-text); font: 14px/1.45 system-ui, sans-serif; max-width: 72rem; }
.pd h2 { font-size: 1.25rem; margin: 1.6rem 0 .5rem; }
.pd h3 { font-size: 1rem; margin: 0 0 .3rem; overflow-wrap: anywhere; }
.pd p, .pd ul { margin: .3rem 0; overflow-wrap: anywhere; }
.pd .verdict { font-size: 1.6rem; font-weight: 700; margin: .6rem 0; }
.pd .good { color: var(--pd-good); }
.pd .bad { color: var(--pd-bad); }
.pd .unsure { color: var(--pd-unsure); }
.pd .quiet { color: var(--pd-quiet); font-weight: 400; }
.pd .finding { border-left: .25rem solid var(--pd-unsure); margin: 0 0 1.1rem; padding: .1rem 0 .1rem .8rem; }
.pd .finding.against { border-color: var(--pd-bad); }
.pd dl { display: grid; grid-template-columns: max-content 1fr; gap: .15rem 1rem; margin: .5rem 0; }
.pd dt { color: var(--pd-quiet); }
.pd dd { margin: 0; overflow-wrap: anywhere; }
.pd pre {
  background: var(--pd-inset); border: 1px solid var(--pd-line); border-radius: 4px; margin: .2rem 0;
  max-height: 16rem; overflow: auto; padding: .5rem; white-space: pre-wrap; overflow-wrap: anywhere;
}
.pd .wide { overflow-x: auto; }
.pd table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
.pd :is(th, td), #results-table .pd :is(th, td) {
  border: 0; border-bottom: 1px solid var(--pd-line); padding: .25rem 1rem .25rem 0; text-align: left;
}
.pd .latencies :is(th, td):nth-child(n + 2), #results-table .pd .replies :is(th, td):nth-child(n + 5) {
  text-align: right; white-space: nowrap;
}
.pd .replies td:nth-child(2) { min-width: 12rem; }
.extraHTML .pd { max-width: none; }
@media print {
  .pd pre { max-height: none; }
  .pd .finding, .pd tr { break-inside: avoid; }
  .controls, .filter { display: none; }
}
</style>"""
)
