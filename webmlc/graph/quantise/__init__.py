"""Compute quantised models in integers."""
