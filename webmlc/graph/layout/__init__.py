"""Choose how tensors lie in memory, and convert them where two layouts meet."""
