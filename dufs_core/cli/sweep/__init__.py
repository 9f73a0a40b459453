"""Batch jobs: many fits from one job file, that go on after whatever stopped them (docs/batch-jobs.md).

job.py reads the job file, identity.py names its fits, work.py computes them in this process or, by spread.py, in
others, and group.py several at once; store.py keeps what is done, under the lock of lock.py; run.py leads; predict.py,
table.py and plots.py say what to expect and what came out; command.py is the command line.
"""

from __future__ import annotations

from dufs_core.cli.sweep.job_file import Job, JobError, read_job

__all__ = ["Job", "JobError", "read_job"]
