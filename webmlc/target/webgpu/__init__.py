"""The WebGPU target legalises a lowered kernel and prints it as WGSL (`emit_shaders`)."""
