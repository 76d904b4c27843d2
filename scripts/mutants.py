"""Breaks the kernels, the structure and the gradients on purpose, one change at a time: the tests must notice.

python scripts/mutants.py --help lists the options; docs/mutants.md explains.
"""

from __future__ import annotations

import sys

from mutants.cli import main

if __name__ == "__main__":
    sys.exit(main())
