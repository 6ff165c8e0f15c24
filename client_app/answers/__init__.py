"""Answers: what a site tells when it is asked."""
