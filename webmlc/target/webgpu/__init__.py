"""WGSL: legalise a lowered kernel, then print it (`emit_shaders`)."""
