"""Discovery: sources that watch for servers that come and go."""

from backends.discovery.dns import Dns
from backends.discovery.source import OnFound, Source

__all__ = ["Dns", "OnFound", "Source"]
