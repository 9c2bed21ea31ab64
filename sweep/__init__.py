"""ha-sweep: drives inference through a gateway, watches its process, and judges both."""

__version__ = "0.1.0"
