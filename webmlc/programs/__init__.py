"""Tensor programs by hand: scripts, tensor expressions, schedules and compiled kernels."""
