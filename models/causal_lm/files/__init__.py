"""Folders of Hugging Face: read, checked and written."""
