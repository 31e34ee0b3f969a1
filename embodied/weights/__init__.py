"""Files of weights that come from elsewhere, without torch: which there are, what their headers say, how tensors are
called."""
