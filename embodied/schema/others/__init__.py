"""Translates keys and values of other systems, and drops those that ask for nothing."""
