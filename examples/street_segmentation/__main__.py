"""Trains a small MinkUNet to label the points of generated street scans, and draws what it learned.

PYTHONPATH=python:examples python -m street_segmentation [--steps 400] [--seconds 480] [--held-out 20]
[--out build/street_segmentation]
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch
from tqdm import tqdm

from lacewing.conv import CLASSES
from street_segmentation.training import HELD_OUT, Run, evaluate, make_scene, predict, train

GATE = 0.8


def main() -> int:
    """Runs, prints, draws; 1 where the mean intersection over union misses the gate."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--seconds", type=float, default=480.0, help="training stops here, steps done or not")
    parser.add_argument("--held-out", type=int, default=20, help="scans that training has not seen")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("build/street_segmentation"))
    options = parser.parse_args()
    if min(options.steps, options.held_out) < 1:
        parser.error("--steps and --held-out must be positive")
    with tqdm(total=options.steps, desc="training") as bar:

        def tell(run: Run) -> None:
            bar.update()
            bar.set_postfix(loss=f"{sum(run.losses[-10:]) / len(run.losses[-10:]):.3f}", refresh=False)

        run = train(options.steps, options.seconds, tell, options.seed)
    run.scores = evaluate(run.net, options.held_out)
    mean = float(run.scores.nanmean())
    for name, score in zip(CLASSES, run.scores.tolist(), strict=True):
        print(f"{name:12} {score:.3f}")
    print(f"mean intersection over union of {options.held_out} held-out scans: {mean:.3f}")
    print(f"{len(run.losses)} steps in {run.seconds:.0f} s on {torch.get_num_threads()} threads")
    options.out.mkdir(parents=True, exist_ok=True)
    torch.save(run.net.state_dict(), options.out / "network.pt")
    (options.out / "losses.json").write_text(json.dumps(run.losses))
    from street_segmentation import pictures

    scene = make_scene(HELD_OUT)
    pictures.loss_curve(run.losses).savefig(options.out / "loss.png", dpi=150)
    pictures.labelled(scene, predict(run.net, scene)).savefig(options.out / "labelled.png", dpi=150)
    print(f"pictures in {options.out}")
    return 0 if mean >= GATE else 1


if __name__ == "__main__":
    raise SystemExit(main())
