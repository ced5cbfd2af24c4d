"""Choose which members of which kernels to measure next."""
