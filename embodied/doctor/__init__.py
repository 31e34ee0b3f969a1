"""What can be wrong with a machine, and with a configuration on it: every cause with its fix, not the first alone.

| file | knows |
|---|---|
| ``findings.py`` | what a check says, and how an error becomes that |
| ``running.py``, ``child.py`` | how checks run side by side, each with a time limit, in processes of their own |
| ``machine.py``, ``versions.py`` | memory, shared memory, open files, disk, processes that were left; packages |
| ``devices.py``, ``peers.py`` | CUDA, flash-attn, NCCL |
| ``simulators.py`` | renderers, files and licences of simulators, by what their env classes say |
| ``configuration.py``, ``sizes.py`` | what a configuration asks for: its errors, its memory and disk |
| ``report.py`` | how findings are shown |

Rules that a run keeps are imported from where the run has them.
"""
