"""Passes that replace an operator by another algorithm, each beside the operators it needs."""
