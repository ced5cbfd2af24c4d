"""Infer the type, shape and (of small integer tensors) value of everything in a graph."""
