"""Attention in one dispatch: tiles of rows, and the rows that fill no tile.

`attention` is the rule, `facts` what a kernel is, `parameters` the records of its four algorithms
and the workgroup memory that each takes. The other files are the algorithms: `plain_tile`,
`copied_tile`, `shared_row` and `register_row`.
"""
