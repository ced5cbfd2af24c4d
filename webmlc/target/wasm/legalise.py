def legalise(f): return f
