"""What keys of one system say here where their value alone does not: a module for each system.

A rule says everything that follows from a key, with the other keys that it needs, so that their order says nothing.
"""
