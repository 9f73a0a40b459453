"""The paper's experiments, one command each: `python -m bench.paper NAME`. See docs/experiments.md."""
