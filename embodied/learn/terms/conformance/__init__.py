"""Checks a user-defined term before anything is collected with it."""
