"""Check the requirements of a model at build, or record them for the run."""
