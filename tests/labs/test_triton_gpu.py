"""A lab's Triton kernels as a file for a process with a GPU."""

from __future__ import annotations

import ast

import pytest
import torch

from tcompile.labs.triton_gpu import on_gpu, script_of
from tcompile.labs.words import speak


def kernel(x_ptr, n):
    """Stands for one of Triton's."""


def differences(device):
    kernel(device, 3)
    return {"kernel": 0.5}


class Interpreted:
    fn = kernel


def test_the_file_has_kernels_and_program_and_runs_it() -> None:
    text = script_of(differences, Interpreted())
    names = [node.name for node in ast.parse(text).body if isinstance(node, ast.FunctionDef)]
    assert names == ["kernel", "differences"] and 'differences("cuda")' in text


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so() -> None:
    speak("en")
    assert "There is no GPU here" in repr(on_gpu(differences, Interpreted()))
