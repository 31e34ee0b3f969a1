"""Reads weights of other people: checks them, and explains where they do not fit."""
