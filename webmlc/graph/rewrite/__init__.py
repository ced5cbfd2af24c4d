"""How passes read and write nodes: what a node means, and the writers of new functions."""
