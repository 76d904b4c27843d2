"""Where and when a run happened, without names of hosts or paths."""

from __future__ import annotations

import datetime
import platform
from pathlib import Path

import torch


def device_name(device: torch.device) -> str:
    """The model of the GPU or CPU."""
    if device.type == "cuda":
        return str(torch.cuda.get_device_name(device))
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.machine()


def describe_run(device: torch.device, command: str) -> dict[str, str | int]:
    """The header of a result."""
    return {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "device": device_name(device),
        "kind": device.type,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "threads": torch.get_num_threads(),
        "command": command,
    }
