"""What this machine has."""

from __future__ import annotations


def gpus() -> int:
    """Returns the number of GPUs of this machine that a run would use; 0 where torch is not installed."""
    try:
        import torch
    except ModuleNotFoundError:
        return 0
    return torch.cuda.device_count() if torch.cuda.is_available() else 0
