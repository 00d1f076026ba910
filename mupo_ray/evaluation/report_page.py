"""The page of a report: its style, which needs nothing from outside the file, and small pieces."""

from __future__ import annotations

import html
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

# Series s0.. tell runs apart, t0.. the stages of a step; both sets are told apart by people with
# the common kinds of colour blindness, in either scheme.
_CSS = """
:root { color-scheme: light dark;
  --paper: #fcfcfa; --card: #ffffff; --ink: #1d2329; --muted: #68727d; --grid: #e4e7ea;
  --good: #1b7a46; --bad: #b3402e; --link: #1f5fa8;
  --s0: #1f6fbf; --s1: #d2601a; --s2: #1d8a5b; --s3: #8a4fc0; --s4: #a8842c; --s5: #c23b78;
  --t0: #3b7dc4; --t1: #e08a3c; --t2: #58a978; --t3: #b9a23a; --t4: #c76a9a; --t5: #7d6bc4;
  --t6: #a3abb3; }
@media (prefers-color-scheme: dark) { :root {
  --paper: #14181c; --card: #1c2227; --ink: #e6e9ec; --muted: #9aa5af; --grid: #313940;
  --good: #62c78f; --bad: #f08a76; --link: #84b8f0;
  --s0: #62a8ee; --s1: #f2924f; --s2: #5cc795; --s3: #bd92ea; --s4: #d9b960; --s5: #ee83b3;
  --t0: #5b9be0; --t1: #e39a55; --t2: #69b98a; --t3: #c9b24d; --t4: #d580aa; --t5: #9a8ade;
  --t6: #7c858d; } }
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; scroll-padding-top: 3.2rem; }
body { margin: 0; background: var(--paper); color: var(--ink); line-height: 1.5;
  font-family: system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; }
main, header { max-width: 1180px; margin: 0 auto; padding: 0 1rem; }
header { padding-top: 1.6rem; }
h1 { font-size: 1.7rem; line-height: 1.2; margin: 0 0 .4rem; }
h2 { font-size: 1.25rem; margin: 2.4rem 0 .4rem; }
h3 { font-size: 1.05rem; margin: 1.4rem 0 .4rem; }
h5 { font-size: .92rem; margin: .9rem 0 .2rem; }
p { margin: .3rem 0 .6rem; } .intro, figcaption, .hint { color: var(--muted); }
.intro { max-width: 46rem; }
a { color: var(--link); }
nav { font-size: .92rem; } nav a { margin-right: 1rem; white-space: nowrap; }
.legend { position: sticky; top: 0; z-index: 2; background: var(--paper);
  border-bottom: 1px solid var(--grid); }
.legend ul, .stages { list-style: none; display: flex; flex-wrap: wrap; gap: .2rem 1.2rem;
  max-width: 1180px; margin: 0 auto; padding: .5rem 1rem; font-size: .92rem; }
.stages { padding: .3rem 0; }
.legend svg { width: 34px; height: 10px; margin-right: .4rem; vertical-align: middle; }
.stages i { display: inline-block; width: .8rem; height: .8rem; margin-right: .4rem;
  border-radius: 2px; vertical-align: -1px; }
.plots { display: grid; gap: 1rem;
  grid-template-columns: repeat(auto-fill, minmax(min(100%, 330px), 1fr)); }
figure { margin: 0; padding: .7rem .8rem; background: var(--card); border: 1px solid var(--grid);
  border-radius: 8px; min-width: 0; }
figure h3 { margin: 0 0 .3rem; font-size: .98rem; }
figure svg { display: block; width: 100%; height: auto; }
figure svg * { stroke-linejoin: round; }
figcaption { font-size: .82rem; line-height: 1.4; margin-top: .3rem; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: .92rem; background: var(--card);
  border: 1px solid var(--grid); }
th, td { padding: .35rem .7rem; text-align: right; vertical-align: top;
  border-bottom: 1px solid var(--grid); font-variant-numeric: tabular-nums; }
th { font-weight: 600; } thead th { white-space: nowrap; }
tbody th, thead th:first-child { text-align: left; font-weight: 400; }
tbody th { max-width: 26rem; }
tbody th small, td small { display: block; color: var(--muted); font-size: .8rem; }
td small { white-space: nowrap; }
table.words td { text-align: left; overflow-wrap: anywhere; }
details { margin: .6rem 0; } summary { cursor: pointer; padding: .25rem 0; }
.cohort { background: var(--card); border: 1px solid var(--grid); border-radius: 8px;
  padding: .8rem; margin: .7rem 0; }
.ask { display: flex; flex-wrap: wrap; gap: .9rem; align-items: flex-start; }
.ask > div:last-child { flex: 1 1 14rem; }
.ask img { max-width: 100%; width: 168px; image-rendering: auto; background: #fff;
  border: 1px solid var(--grid); border-radius: 4px; }
.question { font-weight: 600; white-space: pre-wrap; overflow-wrap: anywhere; }
.nopicture { width: 168px; padding: 1.5rem .5rem; font-size: .82rem; text-align: center;
  color: var(--muted); border: 1px dashed var(--muted); border-radius: 4px; }
.responses { list-style: none; margin: 0; padding: 0; }
.responses li { display: grid; grid-template-columns: 5.2rem 1fr; gap: .2rem .6rem;
  border-left: 3px solid var(--bad); padding: .25rem .6rem; margin: .35rem 0; }
.responses li.right { border-color: var(--good); }
.responses li > div { min-width: 0; }
.verdict { color: var(--bad); font-size: .86rem; line-height: 1.7; }
.right .verdict { color: var(--good); }
.text { margin: 0; white-space: pre-wrap; overflow-wrap: anywhere; font-size: .9rem;
  max-height: 16rem; overflow-y: auto;
  font-family: ui-monospace, "SF Mono", Menlo, Consolas, "DejaVu Sans Mono", monospace; }
.notes { margin: .1rem 0 0; color: var(--muted); font-size: .82rem; }
footer { color: var(--muted); font-size: .85rem; margin: 3rem 0 2rem; }
@media (max-width: 560px) {
  .responses li { grid-template-columns: 1fr; } 
  th, td { padding: .3rem .4rem; } table { font-size: .85rem; }
  tbody th { max-width: 8.2rem; overflow-wrap: anywhere; }
  tbody th small, td small { font-size: .68rem; }
  h1 { font-size: 1.4rem; } }
@media print { .legend { position: static; } }
"""

# Nothing is fetched and no script runs, whatever a response's text may hold.
_POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"


def page(title: str, intro: str, legend: str, sections: Sequence[tuple[str, str, str]]) -> str:
    """The whole document.

    Args:
        title: plain text.
        intro: HTML below the title.
        legend: HTML that stays in view.
        sections: id, heading (plain text) and HTML of each.
    """
    links = " ".join(f'<a href="#{name}">{html.escape(head)}</a>' for name, head, _ in sections)
    body = "".join(
        f'<section id="{name}"><h2>{html.escape(head)}</h2>{content}</section>'
        for name, head, content in sections
    )
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        f"<title>{html.escape(title)}</title><style>{_CSS}</style></head>\n"
        f"<body><header><h1>{html.escape(title)}</h1>{intro}"
        f'<nav aria-label="Sections">{links}</nav></header>\n{legend}\n<main>{body}'
        "<footer>Made by mupo_ray from the files of the runs; this page needs no network."
        "</footer></main></body></html>\n"
    )


def figure(heading: str, svg: str, caption: str) -> str:
    """A plot with its heading and a caption that says what the axes are (plain text, both)."""
    return (
        f"<figure><h3>{html.escape(heading)}</h3>{svg}"
        f"<figcaption>{html.escape(caption)}</figcaption></figure>"
    )


def table(
    head: Sequence[str], rows: Sequence[Sequence[str]], *, caption: str, words: bool = False
) -> str:
    """A table that scrolls sideways on a narrow screen.

    Args:
        head: plain text of the header cells.
        rows: HTML of the cells; the first of each row is its header.
        caption: plain text for readers who cannot see it.
        words: cells are text, not numbers.
    """
    cells = "".join(f'<th scope="col">{html.escape(text)}</th>' for text in head)
    body = "".join(
        f'<tr><th scope="row">{first}</th>{"".join(f"<td>{cell}</td>" for cell in rest)}</tr>'
        for first, *rest in rows
    )
    kind = ' class="words"' if words else ""
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{html.escape(caption)}">'
        f"<table{kind}><thead><tr>{cells}</tr></thead><tbody>{body}</tbody></table></div>"
    )
