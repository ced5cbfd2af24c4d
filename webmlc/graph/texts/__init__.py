"""Texts: the steps that hosts compute before and after the program."""
