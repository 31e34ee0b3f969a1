"""The network: its sizes, modules, initial weights, and FLOPs of a pass."""
