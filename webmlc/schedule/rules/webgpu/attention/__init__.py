"""Attention in one dispatch: tiles of rows, and the rows that fill no tile.

`attention` is the rule, `facts` has the facts of a kernel, and the parameters of its four
algorithms with the workgroup memory of each. The other files are the algorithms:
`plain_tile`, `copied_tile`, `single_row`.
"""
