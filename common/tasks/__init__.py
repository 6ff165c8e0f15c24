"""Tasks: what is learnt of rows, one file for each, and the kinds of rows that there are."""

from common.plugins import Table
from common.tasks.classification import Classification
from common.tasks.contract import Task
from common.tasks.regression import Regression
from common.tasks.segmentation import Segmentation
from common.tasks.survival import Survival

__all__ = ["TASKS", "Classification", "Regression", "Segmentation", "Survival", "Task"]

TASKS: Table[Task] = Table(
    "task",
    "coterie.tasks",
    {task.name: task for task in (Classification(), Regression(), Survival(), Segmentation())},
    of=Task,
)
"""What ``task`` can name beside ``auto``."""
