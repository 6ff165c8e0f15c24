"""Kernels for a GPU, in Triton's interpreter, which takes seconds for a few numbers."""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

COMPARED = """
import torch
from torch.nn import functional
from client_app.training.stacked_kernels import convolved

draws = torch.Generator().manual_seed(0)
for n, images, channels, outs, sides, kernel, padding, dilation in (
    (2, 3, 1, 4, (9, 8), (3, 3), (0, 0), (1, 1)),
    (3, 2, 3, 20, (7, 9), (3, 2), (1, 0), (1, 1)),
    (2, 2, 5, 33, (8, 8), (3, 3), (2, 1), (2, 1)),
):
    x = torch.randn(n, images, channels, *sides, generator=draws).requires_grad_()
    weight = torch.randn(n, outs, channels, *kernel, generator=draws).requires_grad_()
    made = convolved(x.movedim(2, -1), weight, padding, dilation).movedim(-1, 2)
    expected = torch.stack([
        functional.conv2d(rows, own, padding=padding, dilation=dilation)
        for rows, own in zip(x, weight)
    ])
    torch.testing.assert_close(made, expected, rtol=1e-5, atol=1e-5)
    given = torch.randn(expected.shape, generator=draws)
    ours, theirs = (
        torch.autograd.grad((y * given).sum(), [x, weight]) for y in (made, expected)
    )
    for one, other in zip(ours, theirs):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)
"""


@pytest.mark.slow
@pytest.mark.skipif(find_spec("triton") is None, reason="no Triton here")
def test_outputs_and_gradients_are_torchs():
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    root = Path(__file__).parents[3]
    done = subprocess.run(
        [sys.executable, "-c", COMPARED], cwd=root, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
