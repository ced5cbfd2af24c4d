"""Models that several threads, tasks and processes use, and runs that exceptions stop.

`python -m tests.users.concurrency --runs 1000000 --threads 8` runs one model from several threads
and compares every result.
"""
