"""Phases of a run, by which joules are counted."""

COUNTED = ("pre", "train", "comm")
"""Those of Pereira's E_total = E_pre + E_train + E_comm: "Energy-Efficient Federated Learning for
AIoT using Clustering Methods" (Pereira et al.)."""
PHASES = (*COUNTED, "evaluate")
"""All of them; the papers do not count evaluation."""
WORKING = ("pre", "train", "evaluate")
"""Those in which the server works: sending belongs to the phase that it is for."""
