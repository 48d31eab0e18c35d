"""How our part of the page looks: light, dark and on paper; nothing is loaded from anywhere."""

from typing import Final

from pytest_pdserve.report.markup import Html

STYLE: Final = Html(
    """<style>
:root { color-scheme: light dark; }
body { font-size: 14px; min-width: 0; color: CanvasText; background: Canvas; }
h1, h2, p { color: CanvasText; }
.pd {
  --good: #14692f; --bad: #b3161b; --unsure: #7a5200; --line: #c9ccd1; --quiet: #5a6069; --inset: #f4f5f7;
  color: #1a1c1f; font: 14px/1.45 system-ui, sans-serif; max-width: 72rem;
}
@media (prefers-color-scheme: dark) {
  .pd {
    --good: #6fd08c; --bad: #ff8a84; --unsure: #e8b95a; --line: #44484f; --quiet: #a5abb5; --inset: #23262b;
    color: #e8eaed;
  }
}
.pd h2 { color: inherit; font-size: 1.25rem; margin: 1.6rem 0 .5rem; }
.pd h3 { font-size: 1rem; margin: 0 0 .3rem; overflow-wrap: anywhere; }
.pd p, .pd ul { color: inherit; margin: .3rem 0; overflow-wrap: anywhere; }
.pd .verdict { font-size: 1.6rem; font-weight: 700; margin: .6rem 0; }
.pd .good { color: var(--good); }
.pd .bad { color: var(--bad); }
.pd .unsure { color: var(--unsure); }
.pd .quiet { color: var(--quiet); font-weight: 400; }
.pd .finding { border-left: .25rem solid; padding: .1rem 0 .1rem .8rem; margin: 0 0 1.1rem; break-inside: avoid; }
.pd .finding > * { color: var(--text); }
.pd dl { display: grid; grid-template-columns: max-content 1fr; gap: .15rem 1rem; margin: .5rem 0; }
.pd dt { color: var(--quiet); }
.pd dd { margin: 0; overflow-wrap: anywhere; }
.pd pre {
  background: var(--inset); border: 1px solid var(--line); border-radius: 4px; color: inherit; margin: .4rem 0;
  max-height: 16rem; overflow: auto; padding: .5rem; white-space: pre-wrap; overflow-wrap: anywhere;
}
.pd .wide { overflow-x: auto; }
.pd table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
.pd th, .pd td { border-bottom: 1px solid var(--line); padding: .25rem .8rem .25rem 0; text-align: left; }
.pd .number { text-align: right; }
@media print {
  .pd pre { max-height: none; }
  .controls, .filter { display: none; }
}
</style>"""
)
