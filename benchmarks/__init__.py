"""Side-by-side benchmarks of Lacewing and its peers: ``python -m benchmarks``."""
