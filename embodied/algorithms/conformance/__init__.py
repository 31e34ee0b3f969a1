"""Checks of what a user gives by a dotted path, before anything is collected with it."""
