"""Demonstrations of an expert, on disk and as samples for supervised training.

| file | layout |
|---|---|
| ``lerobot.py``, ``lerobot_writer.py`` | LeRobot v3.0 with pictures in parquet files; ``tools.demos`` writes it |
| ``libero_hdf5.py`` | LIBERO's own demonstrations (robomimic's layout) |
| ``maniskill_h5.py`` | trajectories that ManiSkill recorded, replayed with pictures |

:func:`embodied.data.reading.read` finds the layout of a path. This package knows neither simulators nor tokens.
"""
