"""Derive the gradient of a function, for operators that train."""
