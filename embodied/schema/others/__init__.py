"""Keys and values of other systems: what they are here, which are accepted, and which ask for nothing."""
