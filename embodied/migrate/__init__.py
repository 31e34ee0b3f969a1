"""Translates experiments of other systems into experiments of this project."""
