"""Weights of other people: what is looked at while they are read, and what is said where they do not fit."""
