"""Calls the library with arguments that nobody would think of: it answers, or it says one sentence.

python scripts/fuzz.py --help lists the options; `make fuzz` runs it for as long as asked.
"""

from __future__ import annotations

import sys

from fuzzing.cli import main

if __name__ == "__main__":
    sys.exit(main())
