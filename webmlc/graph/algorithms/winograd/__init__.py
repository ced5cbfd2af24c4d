"""Convolutions as Winograd's transforms and products."""
