"""Checks of a term of the user's, before anything is collected with it."""
