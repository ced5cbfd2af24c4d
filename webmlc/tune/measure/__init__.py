"""Measure candidates: trials, the engines that run them, and the workers that have engines."""
