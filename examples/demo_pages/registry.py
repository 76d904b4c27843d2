"""The list of demo pages: a module registers one function that returns a Page."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass, field

Step = Callable[[str], None]


@dataclass
class Section:
    """A heading, a paragraph, and HTML made by html.picture, html.table and the like."""

    heading: str
    text: str
    body: list[str] = field(default_factory=list)


@dataclass
class Page:
    """What a capability shows; `facts` are the numbers on its card of the first page."""

    summary: str
    facts: dict[str, str]
    sections: list[Section]


@dataclass(frozen=True)
class Entry:
    """A registered page; `steps` is how often its function reports progress."""

    slug: str
    title: str
    steps: int
    make: Callable[[Step], Page]


_ENTRIES: dict[str, Entry] = {}


def page(slug: str, title: str, steps: int) -> Callable[[Callable[[Step], Page]], Callable[[Step], Page]]:
    """Registers the decorated function as a page."""

    def register(make: Callable[[Step], Page]) -> Callable[[Step], Page]:
        _ENTRIES[slug] = Entry(slug, title, steps, make)
        return make

    return register


def load_pages() -> list[Entry]:
    """Imports every module of this package and returns the registered pages."""
    package = importlib.import_module("demo_pages")
    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"{package.__name__}.{module.name}")
    return list(_ENTRIES.values())
