"""Benchmarks and experiments; nothing here is installed."""
