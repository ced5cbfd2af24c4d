"""Rewrite a graph into one that says the same with fewer and simpler nodes."""
