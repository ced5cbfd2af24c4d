"""Decide which nodes become one kernel, and where a kernel writes its result."""
