"""Batch jobs: many fits from one job file, resumable after any stop (docs/batch-jobs.md).

job_file.py lists the fits; worker.py computes them, in this process or, through pool.py, in others; results.py stores
the results; runner.py leads; command.py is the command line.
"""

from __future__ import annotations

from dufs_core.cli.sweep.job_file import Job, JobError, read_job

__all__ = ["Job", "JobError", "read_job"]
