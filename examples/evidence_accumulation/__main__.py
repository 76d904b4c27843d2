"""Trains the network on evidence accumulation and draws what it learned.

PYTHONPATH=python:examples python -m evidence_accumulation [--algorithms d-rtrl pp-prop ...] [--seeds 0 1 2]
[--updates 150] [--out build/evidence_accumulation]
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch
from tqdm import tqdm

from evidence_accumulation.evidence import ALGORITHMS, Run, read_config, train

GATES = {"d-rtrl": 0.95, "pp-prop": 0.93}
CEILING = 0.9


def passes(run: Run) -> bool:
    """Whether the moving average is where it must be."""
    best = max(run.ema)
    return best < CEILING if run.algorithm == "readout-only" else best >= GATES.get(run.algorithm, 0.0)


def main() -> int:
    """Runs, prints, draws; 1 where a gate is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--algorithms", nargs="+", choices=ALGORITHMS, default=list(ALGORITHMS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--updates", type=int, default=150)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=1, help="one is fastest for a network this small")
    parser.add_argument("--out", type=Path, default=Path("build/evidence_accumulation"))
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    config = read_config()
    runs: list[Run] = []
    for algorithm in options.algorithms:
        for seed in options.seeds:
            with tqdm(total=options.updates, desc=f"{algorithm}, seed {seed}") as bar:

                def tell(run: Run, bar: tqdm = bar) -> None:
                    bar.update()
                    bar.set_postfix(accuracy=f"{run.ema[-1]:.3f}", refresh=False)

                runs.append(train(algorithm, seed, options.updates, config, tell, options.device))
    options.out.mkdir(parents=True, exist_ok=True)
    for run in runs:
        verdict = "" if options.updates < 150 else "  ok" if passes(run) else "  MISSED"
        print(f"{run.algorithm:13} seed {run.seed}: best {max(run.ema):.3f}, last {run.ema[-1]:.3f}{verdict}")
    curves = [{"algorithm": r.algorithm, "seed": r.seed, "ema": r.ema, "accuracy": r.accuracy} for r in runs]
    (options.out / "curves.json").write_text(json.dumps(curves))
    from evidence_accumulation import pictures

    pictures.learning_curves(runs).savefig(options.out / "curves.png", dpi=150)
    for algorithm in options.algorithms:
        first = next(run for run in runs if run.algorithm == algorithm)
        pictures.raster(first, config, options.device).savefig(options.out / f"raster_{algorithm}.png", dpi=100)
    print(f"pictures in {options.out}")
    return 0 if options.updates < 150 or all(passes(run) for run in runs) else 1


if __name__ == "__main__":
    raise SystemExit(main())
