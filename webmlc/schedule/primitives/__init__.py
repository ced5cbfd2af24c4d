"""The schedule primitives. Each is one function here, and one row of `webmlc.schedule.Schedule`.

A primitive takes an `Edit` of a loop function and plain arguments (names of loops and blocks,
numbers). It changes the function, never its results, and returns the names of new loops or blocks.
"""
