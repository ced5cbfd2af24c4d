"""Read and write nodes in passes: the meaning of a node, and the writers of new functions."""
