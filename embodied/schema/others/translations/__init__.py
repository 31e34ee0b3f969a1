"""Rules for keys that cannot be translated by their value alone: a module for each system.

A rule says everything that follows from a key, with the other keys that it needs, so that their order says nothing.
"""
