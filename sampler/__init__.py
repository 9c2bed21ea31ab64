"""ha-sampler: a read-only recorder of one process's /proc evidence. Standard library only."""

__version__ = "0.1.0"
