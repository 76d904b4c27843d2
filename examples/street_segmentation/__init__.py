"""Semantic segmentation of generated street scans with a small MinkUNet."""
