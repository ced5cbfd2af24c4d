"""The steps that the rules of both targets share: cover an extent with tiles and remainders, keep a
tile in registers, finish it with an epilogue.

In: a schedule in progress and the parameters of a rule. Nothing here chooses, and nothing knows
threads or memory levels.
"""
