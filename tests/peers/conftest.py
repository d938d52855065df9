"""Slides and our features of them, made once for all programs; and a way to run a program of a peer."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

import pandas as pd
import pytest

from asmil.api import extract
from asmil.cohort.manifest import Cohort, load_cohort

PEERS_TESTS = Path(__file__).parent
STAND_INS = PEERS_TESTS / "stand_ins"
PROGRAMS = PEERS_TESTS / "programs"
