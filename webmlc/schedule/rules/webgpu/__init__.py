"""Schedules for WebGPU: ordered rules, each of which answers for the kernels it knows.

    RULES = pointwise, contraction, window, rows; the last answers for every kernel that can run in one dispatch
"""
