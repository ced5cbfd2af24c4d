"""Rewrite a graph into an equal graph of fewer and simpler nodes."""
