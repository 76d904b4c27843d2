"""The pages of the demo, one module per capability."""
