"""Benchmarks: `python -m bench` measures this machine and writes `bench/results/*.json` and the table in docs/benchmarks.md."""
