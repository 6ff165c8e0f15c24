"""Ports of a server in a container: its administrators' own, and the one that sites are led to."""

__all__ = ["port_of_sites"]


def port_of_sites(port: int) -> int:
    """Return the port of a container that sites are led to; ``port`` is its administrators' own.

    >>> port_of_sites(9092), port_of_sites(65535)
    (9093, 65534)
    """
    return port + 1 if port < 65535 else port - 1
