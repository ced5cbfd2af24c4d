"""Attention in one dispatch: tiles of rows, and the rows that fill no tile.

`attention` is the rule, `facts` the facts of a kernel, `parameters` the records of its four
algorithms and the workgroup memory of each algorithm. The other files are the algorithms:
`plain_tile`, `copied_tile`, `shared_row` and `register_row`.
"""
