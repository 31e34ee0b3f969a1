"""Writes the policy: as a folder, or as a program."""
