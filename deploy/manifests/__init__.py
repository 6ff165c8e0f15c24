"""Manifests: what keeps a server and its sites running, by systemd, compose or Kubernetes."""
