"""The side of an inference engine: these files run in its interpreter, as scripts of one folder."""
