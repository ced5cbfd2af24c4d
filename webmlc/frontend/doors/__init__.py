"""Read models of other frameworks, each through the exporter that its ecosystem maintains."""
