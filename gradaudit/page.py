"""The report as a page of HTML that needs nothing else: no other file, no network, no script."""

from html import escape
from io import StringIO
from typing import TYPE_CHECKING

from gradaudit.callsite import short, source
from gradaudit.rules.registry import Finding, count_noun

if TYPE_CHECKING:
    from gradaudit.report import Report

_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 56rem; margin: 2rem auto; padding: 0 1rem; }
body { color: #1b1b1b; background: #fff; }
h1 { font-size: 1.5rem; }
h2 { font-size: 1.1rem; margin: 0 0 .4rem; }
p { margin: .4rem 0; }
section { border-left: 5px solid; padding: .3rem 1rem; margin: 1.4rem 0; }
.error { border-color: #b3261e; }
.advice { border-color: #a86500; }
.undecided { border-color: #0b6a8a; }
.level { font-size: .8rem; padding: .1rem .5rem; border: 1px solid; border-radius: 1rem; margin-left: .5rem; }
pre { font: .9rem/1.45 ui-monospace, monospace; background: #f3f3f3; padding: .5rem .8rem; overflow-x: auto; }
figure { margin: 1.4rem 0; }
svg { max-width: 100%; height: auto; }
summary { cursor: pointer; }
"""


def as_page(report: "Report", title: str, before: str = "") -> str:
    """The page.

    Args:
        report: A complete report.
        title: Its heading.
        before: Words before the summary.
    """
    findings = "".join(_section(report, finding) for finding in report.findings)
    findings += f"<p>{escape(report.conclusion())}</p>" if report.conclusion() else ""
    counts = f"{count_noun(len(report.errors), 'error')} among {count_noun(len(report.findings), 'finding')}"
    return (
        f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f'<meta name="viewport" content="width=device-width"><style>{_STYLE}</style></head>\n'
        f"<body><h1>{escape(title)}</h1>\n<p>{escape(before + report.summary())} {counts}.</p>\n"
        f"{_drawing(report)}\n{findings}</body></html>\n"
    )


def _section(report: "Report", finding: Finding) -> str:
    lines = [(place, source(place)) for place in (finding.where, getattr(finding.where, "via", "")) if place]
    code = "\n".join(f"{short(place)}  {text}".rstrip() for place, text in lines)
    evidence = "\n".join(f"{name}: {value}" for name, value in finding.evidence.items())
    return (
        f'<section class="{finding.level}"><h2>{escape(finding.rule)}<span class="level">{finding.level}</span></h2>'
        f"<p>{escape(report.sentence(finding))}</p>"
        + (f"<pre>{escape(code)}</pre>" if code else "")
        + f"<p><b>Fix:</b> {escape(finding.fix)}</p>"
        + (f"<details><summary>Evidence</summary><pre>{escape(evidence)}</pre></details>" if evidence else "")
        + "</section>\n"
    )


def _drawing(report: "Report") -> str:
    """The ledger around the first finding."""
    if not report.history.trace.events:
        return ""
    file = StringIO()
    report.ledger().savefig(file, format="svg", metadata={"Date": None})
    svg = file.getvalue()
    caption = "Each row is an optimizer; its height is the number of backward calls whose gradients it holds."
    return f"<figure>{svg[svg.index('<svg') :]}<figcaption>{caption}</figcaption></figure>"
