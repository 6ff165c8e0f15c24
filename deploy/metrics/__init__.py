"""Figures of a running federation, as Prometheus reads them; none is of a row."""
