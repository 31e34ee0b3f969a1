"""Meters of an optimizer step: bytes of live tensors, utilisation of the device, and what an update logs."""
