"""What follows from the values of keys, and which combinations of them cannot work."""
