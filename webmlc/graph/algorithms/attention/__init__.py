"""Attention as one operator."""
