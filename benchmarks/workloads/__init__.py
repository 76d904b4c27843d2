"""One module per workload; each registers itself with benchmarks.registry.workload."""
