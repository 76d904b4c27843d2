"""Self-contained HTML: style, pictures and tables inline, no network."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING

from demo_pages.registry import Entry, Page

if TYPE_CHECKING:
    from matplotlib.figure import Figure

STYLE = """
:root { --ink: #1e293b; --soft: #64748b; --line: #e2e8f0; --accent: #0f766e; --paper: #ffffff; --ground: #f8fafc; }
* { box-sizing: border-box; }
body { margin: 0; background: var(--ground); color: var(--ink);
       font: 16px/1.6 system-ui, -apple-system, "Segoe UI", sans-serif; }
header { background: linear-gradient(120deg, #134e4a, #0f766e 60%, #0e7490); color: #fff; padding: 2.2rem 1.5rem 2rem; }
header > *, main { max-width: 1040px; margin-inline: auto; }
header a { color: #ccfbf1; text-decoration: none; }
h1 { font-size: 2rem; line-height: 1.2; margin: 0 auto .4rem; }
header p { margin: 0 auto; opacity: .92; }
main { padding: 1.5rem; }
section, .card { background: var(--paper); border: 1px solid var(--line); border-radius: 12px;
                 padding: 1.3rem 1.5rem; margin: 0 0 1.4rem; }
h2 { font-size: 1.25rem; margin: 0 0 .4rem; }
figure { margin: 1rem 0 .4rem; }
img { max-width: 100%; height: auto; display: block; margin: 0 auto; }
figcaption { color: var(--soft); font-size: .9rem; text-align: center; margin-top: .4rem; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; margin: .8rem 0;
        font-size: .92rem; font-variant-numeric: tabular-nums; }
th { color: var(--soft); font-weight: 600; }
th, td { text-align: right; padding: .35rem .7rem; border-bottom: 1px solid var(--line); white-space: nowrap; }
th:first-child, td:first-child { text-align: left; }
.cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(300px, 1fr)); gap: 1.2rem; }
.card { display: block; color: inherit; text-decoration: none; margin: 0; }
.card:hover { border-color: var(--accent); }
dl { display: grid; grid-template-columns: 1fr auto; gap: .15rem 1rem; margin: .8rem 0 0; font-size: .92rem; }
dt { color: var(--soft); } dd { margin: 0; font-weight: 600; text-align: right; }
code, pre { font: .88rem/1.5 ui-monospace, Consolas, monospace; background: #f1f5f9; border-radius: 6px; }
code { padding: .1rem .3rem; } pre { padding: .9rem 1rem; overflow-x: auto; }
"""


def picture(figure: Figure, caption: str) -> str:
    """A matplotlib figure as an inline image; the caption is its text for those who cannot see it."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=150)
    data = base64.b64encode(buffer.getvalue()).decode()
    return (
        f'<figure><img alt="{escape(caption)}" src="data:image/png;base64,{data}">'
        f"<figcaption>{escape(caption)}</figcaption></figure>"
    )


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table whose first column is text and whose others are numbers."""
    top = "".join(f'<th scope="col">{escape(cell)}</th>' for cell in head)
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f'<div class="scroll"><table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>'


def code(text: str) -> str:
    """A block of code."""
    return f"<pre>{escape(text.strip())}</pre>"


def document(title: str, lead: str, body: str, back: bool) -> str:
    """A whole page."""
    link = '<p><a href="index.html">&larr; all capabilities</a></p>' if back else ""
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)} - Lacewing</title><style>{STYLE}</style></head><body>"
        f"<header>{link}<h1>{escape(title)}</h1><p>{escape(lead)}</p></header><main>{body}</main></body></html>\n"
    )


def capability_page(entry: Entry, page: Page) -> str:
    """The page of one capability."""
    sections = [
        f"<section><h2>{escape(s.heading)}</h2><p>{escape(s.text)}</p>{''.join(s.body)}</section>"
        for s in page.sections
    ]
    return document(entry.title, page.summary, "".join(sections), back=True)


def index_page(pages: Sequence[tuple[Entry, Page]], footer: str) -> str:
    """The first page: one card per capability."""
    cards = []
    for entry, page in pages:
        facts = "".join(f"<dt>{escape(k)}</dt><dd>{escape(v)}</dd>" for k, v in page.facts.items())
        cards.append(
            f'<a class="card" href="{entry.slug}.html"><h2>{escape(entry.title)}</h2>'
            f"<p>{escape(page.summary)}</p><dl>{facts}</dl></a>"
        )
    body = f'<div class="cards">{"".join(cards)}</div><p><small>{escape(footer)}</small></p>'
    return document(
        "Lacewing", "Differentiable sparse tensor operations for PyTorch, as measured just now.", body, False
    )
