"""Shows what Lacewing does: runs every capability once and writes build/demo/index.html."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import torch  # noqa: E402
from benchmarks.environment import device_name  # noqa: E402
from demo_pages.html import capability_page, index_page  # noqa: E402
from demo_pages.registry import load_pages  # noqa: E402
from tqdm import tqdm  # noqa: E402


def main() -> None:
    """Writes one page per capability and the first page that links them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "demo", help="folder of the pages")
    folder = parser.parse_args().out
    folder.mkdir(parents=True, exist_ok=True)
    entries = load_pages()
    pages = []
    with tqdm(total=sum(entry.steps for entry in entries), unit="step", ncols=90) as bar:

        def step(text: str) -> None:
            bar.update(1 if bar.desc else 0)
            bar.set_description_str(f"{text:<24.24}")

        for entry in entries:
            page = entry.make(step)
            (folder / f"{entry.slug}.html").write_text(capability_page(entry, page), encoding="utf-8")
            pages.append((entry, page))
        bar.update()
    cpu = torch.device("cpu")
    footer = f"{device_name(cpu)}, {torch.get_num_threads()} threads, torch {torch.__version__}"
    index = folder / "index.html"
    index.write_text(index_page(pages, footer), encoding="utf-8")
    print(f"The demo is at {index}")


if __name__ == "__main__":
    main()
