"""Batch jobs: many fits from one job file, that go on after whatever stopped them (docs/batch-jobs.md).

job_file.py reads the job file and names its fits; worker.py computes them in this process or, by pool.py, in others;
results.py keeps what is done and makes the tables; runner.py leads; command.py is the command line.
"""

from __future__ import annotations

from dufs_core.cli.sweep.job_file import Job, JobError, read_job

__all__ = ["Job", "JobError", "read_job"]
