"""Damaged and unusual models: each is computed right, or refused with one clear error.

`python -m tests.users.mutations --count 1000 --seed 7` draws mutants, builds each by the command
line, runs the package, and compares with a runtime that we did not write. The number of a mutant
and the seed decide it, so that a line of the report is enough to draw it again.

A family of models (`family.py`) says how a mutant is drawn and how it is judged. The rest of this
folder does not know the format of a model.
"""
