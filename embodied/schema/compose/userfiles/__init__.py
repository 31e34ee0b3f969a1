"""Files of configuration that a user wrote: what is wrong with one is said with its line."""
