"""Report of a comparison: one self-contained HTML page, the plots beside it, and the figures as JSON.

The report is first written into a temporary folder, and moved to its place when it is complete: a run that fails leaves
the earlier report. Names come from the trace, and are escaped.
"""

import re
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from errno import ENOTDIR
from html import escape
from pathlib import Path

import orjson

from gateway.simulate.report.findings import Findings, Setting
from gateway.simulate.report.table import as_json, group_rows, rows, session_rows, tenant_rows

TENANTS_SHOWN = 200
NO_PLOTS = "There are no plots: matplotlib is not installed. Get them with: pip install 'fairlead[simulate]'"

PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>fairlead simulate</title>
<style>
body {{ font: 15px/1.45 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem; color: #1b1e23 }}
h1, h2 {{ font-weight: 600; line-height: 1.2 }}
h2 {{ margin-top: 3rem; border-bottom: 1px solid #ddd }}
table {{ border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: 13px; display: block;
  overflow-x: auto }}
th, td {{ padding: .25rem .6rem; text-align: right; border-bottom: 1px solid #eee }}
th:first-child, td:first-child {{ text-align: left }}
dl {{ display: grid; grid-template-columns: max-content 1fr; gap: .15rem 1rem }}
dt {{ color: #666 }} dd {{ margin: 0 }}
svg {{ max-width: 100%; height: auto; margin: .75rem 0 }}
</style>
<h1>What these policies would do</h1>
<dl>{facts}</dl>
{summary}
<p>Service is counted in priced tokens. The largest difference is that of any two tenants over a time in which both had
something waiting; a fair policy bounds it. The quietest and the loudest tenant are those that asked for least and most.
</p>
{runs}
</html>
"""


@contextmanager
def prepared(folder: Path) -> Iterator[Path]:
    """A new folder to write into, which replaces `folder` (or adds its files there) after success. Raises OSError where
    it cannot be written, before the comparison is computed.
    """
    folder = folder.absolute()
    if folder.exists() and not folder.is_dir():
        raise NotADirectoryError(ENOTDIR, "is not a folder", str(folder))
    folder.parent.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        yield draft
        draft.chmod(0o755)
        if not folder.exists():
            draft.rename(folder)
            return
        for file in sorted(draft.iterdir()):
            file.replace(folder / file.name)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def write(folder: Path, setting: Setting, runs: Sequence[Findings]) -> bool:
    """Write index.html, findings.json and a file per plot. Returns whether there are plots."""
    plots = [_plots(run) for run in runs]
    sections = [_section(run, drawn) for run, drawn in zip(runs, plots, strict=True)]
    facts = "".join(f"<dt>{escape(name)}</dt><dd>{escape(text)}</dd>" for name, text in setting.facts.items())
    page = PAGE.format(facts=facts, summary=_summary(runs), runs="\n".join(sections))
    (folder / "index.html").write_text(page, encoding="utf-8")
    (folder / "findings.json").write_bytes(orjson.dumps(as_json(setting, runs), option=orjson.OPT_INDENT_2) + b"\n")
    for run, drawn in zip(runs, plots, strict=True):
        policy = re.sub(r"[^A-Za-z0-9.=-]+", "-", run.policy).strip("-")
        for name, svg in drawn.items():
            (folder / f"{policy}-{name}.svg").write_text(svg, encoding="utf-8")
    return any(plots)


def _plots(run: Findings) -> dict[str, str]:
    try:
        from gateway.simulate.report.plots import draw  # noqa: PLC0415 - matplotlib is optional
    except ModuleNotFoundError as error:
        if error.name != "matplotlib":
            raise
        return {}
    return draw(run)


def _section(run: Findings, plots: dict[str, str]) -> str:
    drawn = "\n".join(plots.values()) or f"<p>{escape(NO_PLOTS)}</p>"
    groups = _table(group_rows(run)) if run.groups else ""
    tenants = tenant_rows(run)
    rest = len(tenants) - 1 - TENANTS_SHOWN
    more = f"<p>{rest} more are in findings.json.</p>" if rest > 0 else ""
    return f"<h2>{escape(run.policy)}</h2>\n{drawn}\n{groups}{_table(tenants[: TENANTS_SHOWN + 1])}{more}"


def _summary(runs: Sequence[Findings]) -> str:
    sessions = session_rows(runs)
    return _table(rows(runs)) + (_table(sessions) if sessions else "")


def _table(lines: Sequence[Sequence[str]]) -> str:
    header, *body = lines
    head = "".join(f"<th>{escape(cell)}</th>" for cell in header)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(map(_row, body))}</tbody></table>"


def _row(cells: Sequence[str]) -> str:
    return f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in cells)}</tr>"
