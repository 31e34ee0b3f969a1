"""Every key with its default, type and meaning, and how a nested mapping is read and changed by dotted keys."""
