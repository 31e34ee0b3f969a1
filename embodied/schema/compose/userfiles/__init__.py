"""Checks configuration files that a user wrote: an error names the line."""
