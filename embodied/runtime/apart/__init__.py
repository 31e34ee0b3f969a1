"""Runs commands of the doctor and the self-test in processes of their own; ends each with all that it has started.

| file | knows |
|---|---|
| ``processes.py`` | how a command is started in a group of its own, and how the group is ended |
| ``left.py`` | which processes of a command are left although its group was ended: they made a session of their own |
"""
