"""Comparison of an exported file with its model."""
